"""What to do with a failure, as a value: a pure function, tested as a table.

| failure                          | decision                                            |
|----------------------------------|-----------------------------------------------------|
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


@dataclass(frozen=True, slots=True)
class Again:
    """Try the sample again after ``wait_s`` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Write the sample to the ledger."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End this worker; another one gets the message."""


Decision = Again | GiveUp | Stop


def decide(error: StatetapError, attempt: int) -> Decision:
    """The decision for a failure.

    Args:
        error: what went wrong.
        attempt: how often the sample has been tried, this time included; starts at 1.
    """
    match error:
        case RejectError():
            return GiveUp()
        case RetryError() if attempt >= MAX_ATTEMPTS:
            return GiveUp()
        case TransientError(retry_after_s=float(wait_s)):
            return Again(min(wait_s, _LONGEST_WAIT_S))
        case RetryError():
            return Again(min(2.0 ** (attempt - 1), _LONGEST_WAIT_S))
    return Stop()
