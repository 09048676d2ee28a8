"""The failed try: one submission of a prompt that led to no sample, as a line of ``tries``."""

from dataclasses import asdict, dataclass
from typing import Self

from statetap_contract.strict_json import read_record


@dataclass(frozen=True, slots=True)
class FailedTry:
    """Written by a worker, which counts them, and read by ``report``."""

    #: Sample key.
    key: str
    #: The job's attempt: ``rerun`` gives a sample out afresh, and its tries count from 0 again.
    attempt: int
    #: Kind of the error.
    kind: str
    #: URL of the server that was asked.
    server: str
    #: UTC, ISO 8601.
    time: str

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        return read_record(cls, value, "the failed try")
