"""The decision table, line by line."""

import pytest
from statetap_contract import (
    MismatchError,
    RejectError,
    StatetapError,
    StopError,
    TransientError,
    UsageError,
)
from statetap_worker.retry import MAX_ATTEMPTS, Again, Decision, GiveUp, Stop, WaitForServer, decide


@pytest.mark.parametrize(
    ("error", "attempt", "decision"),
    [
        (TransientError("k", "m"), 1, Again(1)),
        (TransientError("k", "m"), 3, Again(4)),
        (TransientError("k", "m", 7.0), 1, Again(7)),
        (TransientError("k", "m", 3600.0), 1, Again(60)),
        (TransientError("k", "m"), MAX_ATTEMPTS, GiveUp()),
        (MismatchError("k", "m"), 1, Again(1)),
        (MismatchError("k", "m"), 5, Again(16)),
        (MismatchError("k", "m"), MAX_ATTEMPTS, GiveUp()),
        (TransientError("server-unreachable", "m"), 1, WaitForServer(2)),
        (TransientError("server-unreachable", "m"), MAX_ATTEMPTS, WaitForServer(2)),
        (TransientError("server-busy", "m", 9.0), 1, WaitForServer(9)),
        (TransientError("dumps-full", "m", 3600.0), 1, WaitForServer(60)),
        (RejectError("k", "m"), 1, GiveUp()),
        (StopError("k", "m"), 1, Stop()),
        (StopError("k", "m"), MAX_ATTEMPTS, Stop()),
        # Whatever nobody foresaw must not spend samples.
        (UsageError("k", "m"), 1, Stop()),
    ],
)
def test_decision(error: StatetapError, attempt: int, decision: Decision) -> None:
    """The same failure always leads to the same decision."""
    assert decide(error, attempt) == decision
