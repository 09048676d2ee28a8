"""Why stored states differ from the reference: hypotheses, each tried on the rows themselves."""
