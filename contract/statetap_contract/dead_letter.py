"""The dead letter: one sample given up on, as a line of the ledger."""

from dataclasses import asdict, dataclass
from typing import Self

from statetap_contract.strict_json import read_record


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Written by a worker, read by ``status`` and ``rerun``."""

    #: Sample key.
    key: str
    #: Stable reason, the ``kind`` of the error.
    kind: str
    message: str
    #: Times the sample was tried.
    attempts: int
    #: URL of the server that was asked last.
    server: str
    #: UTC, ISO 8601.
    time: str

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        return read_record(cls, value, "the dead letter")
