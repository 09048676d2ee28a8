"""An EAGLE-3 drafter, trained on a run's states on the CPU, and what damaged states make of it."""
