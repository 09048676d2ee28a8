"""What verification and repair say of a shard."""

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


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What repair made of a shard."""

    path: Path
    #: Samples that are there now.
    num_samples: int
    #: What was put right without any loss.
    mended: tuple[Fault, ...]
    #: Why samples had to be given up, one fault a sample, by row. No key where it is lost too, and
    #: none whose sample another row of the shard holds.
    lost: tuple[Fault, ...]
    #: What is still wrong.
    left: tuple[Fault, ...]

    @property
    def is_intact(self) -> bool:
        return not self.left
