"""Runs the whole of statetap as processes of one machine, for the demo and the tests."""
