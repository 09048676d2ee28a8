"""What verification says of a shard."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a shard."""

    #: Stable, kebab case.
    kind: str
    #: The sample concerned; None for the shard as a whole, or where a row's key is lost.
    key: str | None
    #: One sentence.
    message: str


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The verdict on one shard."""

    path: Path
    #: Samples whose index row is right, their tokens, and their bytes of states, ids and masks.
    num_samples: int
    num_tokens: int
    num_bytes: int
    #: Header first, then the index, then payloads, each in file order.
    faults: tuple[Fault, ...]

    @property
    def is_intact(self) -> bool:
        return not self.faults
