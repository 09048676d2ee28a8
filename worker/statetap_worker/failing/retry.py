"""What to do with a failure, as a value: a pure function, tested as a table.

| failure                                        | decision                                       |
|------------------------------------------------|------------------------------------------------|
| server gone, busy or full, key still in flight | wait for it, then put the message back; no try |
| server lost with the prompt in hand            | the same, but it counts, and the next is alone |
| process lost with the prompt in hand           | counts likewise; Celery puts the message back  |
| either, ``MOST_LOSSES`` times                  | dead letter                                    |
| transient, a Retry-After given                 | again after that time, at most 60 s            |
| transient                                      | again after 1, 2, 4 ... s, at most 60          |
| mismatch                                       | the same                                       |
| any of these that counts, ``MOST_TRIES`` times | dead letter                                    |
| rejected                                       | dead letter at once                            |
| fatal to the worker                            | stop; the message goes back to the queue       |
"""

from dataclasses import dataclass
from typing import Final

from statetap_contract import RejectError, RetryError, StatetapError, TransientError

from statetap_worker.failing.tries import SERVER_LOST, TriedBefore

MOST_TRIES: Final = 6
#: Each costs a server's start, which takes minutes with a large model. All but the first are alone.
MOST_LOSSES: Final = 3
_LONGEST_WAIT_S: Final = 60.0

#: Kinds that say nothing of the sample. Waiting in the process, instead of sending the message off
#: for later, keeps an outage from drawing the whole queue into retries.
_SERVER_KINDS: Final = ("server-unreachable", "server-busy", "dumps-full", "key-in-flight")
_SERVER_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Again:
    """Try the sample again after ``wait_s`` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class WaitForServer:
    """Hold on until the server is ready, ``at_least_s`` seconds, then put the message back."""

    at_least_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Write the sample to the ledger."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End this worker; another one gets the message."""


Decision = Again | WaitForServer | GiveUp | Stop


def decide(error: StatetapError, before: TriedBefore) -> Decision:
    """The decision for a failure.

    Args:
        error: what went wrong.
        before: the tries of the sample that failed before this one.
    """
    is_last = before.num_failed + 1 >= MOST_TRIES
    match error:
        case RejectError():
            return GiveUp()
        case TransientError(kind=kind) if kind in _SERVER_KINDS:
            wait_s = _SERVER_WAIT_S if error.retry_after_s is None else error.retry_after_s
            return WaitForServer(min(wait_s, _LONGEST_WAIT_S))
        case TransientError(kind=kind) if kind == SERVER_LOST:
            is_deadly = len(before.losses) + 1 >= MOST_LOSSES
            return GiveUp() if is_deadly or is_last else WaitForServer(_SERVER_WAIT_S)
        case RetryError():
            asked_s = error.retry_after_s if isinstance(error, TransientError) else None
            wait_s = 2.0**before.num_failed if asked_s is None else asked_s
            return GiveUp() if is_last else Again(min(wait_s, _LONGEST_WAIT_S))
    return Stop()


def counts(error: StatetapError) -> bool:
    """Whether a failure is a failed try of its sample, and not the server's alone."""
    return isinstance(error, RetryError) and error.kind not in _SERVER_KINDS


def deadly_error(before: TriedBefore) -> RejectError | None:
    """Why a sample is not tried any more that ended whoever had it in hand; None where it is."""
    if len(before.losses) < MOST_LOSSES:
        return None
    return RejectError(
        before.losses[-1],
        f"a worker process or a server ended {len(before.losses)} times with the prompt in hand; "
        "see their logs, and rerun it if it was not to blame",
    )
