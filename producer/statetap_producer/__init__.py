"""Dataset to plan to Redis, what became of it, and the ``statetap`` command."""
