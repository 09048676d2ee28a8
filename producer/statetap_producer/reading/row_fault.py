"""A row that is left out."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that is left out, and why."""

    file: str
    line: int
    kind: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"
