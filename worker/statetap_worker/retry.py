"""What to do with a failure, as a value: a pure function, tested as a table.

| failure                          | decision                                            |
|----------------------------------|-----------------------------------------------------|
| server gone, busy, or full       | wait for it, then put the message back; no attempt  |
| transient, a Retry-After given   | again after that time                               |
| transient                        | again after 1, 2, 4 ... s, at most 60               |
| mismatch                         | the same                                            |
| either, after ``MAX_ATTEMPTS``   | dead letter                                         |
| rejected                         | dead letter at once                                 |
| fatal to the worker              | stop; the message goes back to the queue            |
"""

from dataclasses import dataclass
from typing import Final

from statetap_contract import RejectError, RetryError, StatetapError, TransientError

MAX_ATTEMPTS: Final = 6
_LONGEST_WAIT_S: Final = 60.0

#: Kinds that say nothing of the sample. Waiting in the process, instead of sending the message off
#: for later, keeps an outage from drawing the whole queue into retries.
_SERVER_KINDS: Final = ("server-unreachable", "server-busy", "dumps-full")
_SERVER_WAIT_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Again:
    """Try the sample again after ``wait_s`` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class WaitForServer:
    """Hold on until the server is ready, ``at_least_s`` seconds; this attempt does not count."""

    at_least_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Write the sample to the ledger."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End this worker; another one gets the message."""


Decision = Again | WaitForServer | GiveUp | Stop


def decide(error: StatetapError, attempt: int) -> Decision:
    """The decision for a failure.

    Args:
        error: what went wrong.
        attempt: how often the sample has been tried, this time included; starts at 1.
    """
    match error:
        case RejectError():
            return GiveUp()
        case TransientError(kind=kind) if kind in _SERVER_KINDS:
            wait_s = _SERVER_WAIT_S if error.retry_after_s is None else error.retry_after_s
            return WaitForServer(min(wait_s, _LONGEST_WAIT_S))
        case RetryError() if attempt >= MAX_ATTEMPTS:
            return GiveUp()
        case TransientError(retry_after_s=float(wait_s)):
            return Again(min(wait_s, _LONGEST_WAIT_S))
        case RetryError():
            return Again(min(2.0 ** (attempt - 1), _LONGEST_WAIT_S))
    return Stop()
