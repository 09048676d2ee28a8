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
from statetap_worker.failing.retry import (
    Again,
    Decision,
    GiveUp,
    Stop,
    WaitForServer,
    counts,
    deadly_error,
    decide,
)
from statetap_worker.failing.tries import TriedBefore

LOST = ("server-lost",)


@pytest.mark.parametrize(
    ("error", "before", "decision"),
    [
        (TransientError("k", "m"), TriedBefore(), Again(1)),
        (TransientError("k", "m"), TriedBefore(2), Again(4)),
        (TransientError("k", "m", 7.0), TriedBefore(), Again(7)),
        (TransientError("k", "m", 3600.0), TriedBefore(), Again(60)),
        (TransientError("k", "m"), TriedBefore(5), GiveUp()),
        (TransientError("k", "m", 7.0), TriedBefore(5), GiveUp()),
        (MismatchError("k", "m"), TriedBefore(), Again(1)),
        (MismatchError("k", "m"), TriedBefore(4), Again(16)),
        (MismatchError("k", "m"), TriedBefore(5), GiveUp()),
        (TransientError("server-unreachable", "m"), TriedBefore(), WaitForServer(2)),
        (TransientError("server-unreachable", "m"), TriedBefore(50), WaitForServer(2)),
        (TransientError("key-in-flight", "m"), TriedBefore(50), WaitForServer(2)),
        (TransientError("server-busy", "m", 9.0), TriedBefore(), WaitForServer(9)),
        (TransientError("dumps-full", "m", 3600.0), TriedBefore(), WaitForServer(60)),
        (TransientError("server-lost", "m"), TriedBefore(), WaitForServer(2)),
        (TransientError("server-lost", "m"), TriedBefore(1, LOST), WaitForServer(2)),
        (TransientError("server-lost", "m"), TriedBefore(2, LOST * 2), GiveUp()),
        (TransientError("server-lost", "m"), TriedBefore(5), GiveUp()),
        (RejectError("k", "m"), TriedBefore(), GiveUp()),
        (StopError("k", "m"), TriedBefore(), Stop()),
        (StopError("k", "m"), TriedBefore(50), Stop()),
        # Whatever nobody foresaw must not spend samples.
        (UsageError("k", "m"), TriedBefore(), Stop()),
    ],
)
def test_decision(error: StatetapError, before: TriedBefore, decision: Decision) -> None:
    """The same failure always leads to the same decision."""
    assert decide(error, before) == decision


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (TransientError("server-unreachable", "m"), False),
        (TransientError("server-busy", "m"), False),
        (TransientError("dumps-full", "m"), False),
        (TransientError("key-in-flight", "m"), False),
        (TransientError("server-lost", "m"), True),
        (TransientError("server-timeout", "m"), True),
        (MismatchError("k", "m"), True),
        (RejectError("k", "m"), False),
        (StopError("k", "m"), False),
    ],
)
def test_what_counts_as_a_try(error: StatetapError, *, is_counted: bool) -> None:
    """What is not the sample's doing does not bring its end nearer."""
    assert counts(error) is is_counted


@pytest.mark.parametrize(
    ("losses", "kind"),
    [
        ((), None),
        (("worker-lost", "server-lost"), None),
        (("server-lost", "worker-lost", "worker-lost"), "worker-lost"),
        (("worker-lost", "worker-lost", "server-lost"), "server-lost"),
    ],
)
def test_what_ends_whoever_has_it_is_tried_no_more(losses: tuple[str, ...], kind: str) -> None:
    """After the third time, and the last one names the reason."""
    error = deadly_error(TriedBefore(len(losses), losses))
    assert (error.kind if error else None) == kind
