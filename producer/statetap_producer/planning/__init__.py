"""From a dataset to a run: tokenised on all cores, counted, and what it will take."""
