"""How the writers of the crash tests deliver samples: as a worker does, saying what is durable."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from statetap_store import ShardSet

from .numbered import PROVENANCE, SHARD_BYTES, SPEC, sample

#: What precedes the numbers of samples that are durable, one line a commit.
ACKNOWLEDGED: Final = "acknowledged "


class DisprovenError(Exception):
    """A sample is not what it should be."""


def _disprove() -> None:
    raise DisprovenError


class Deliverer:
    """Delivers samples to the shards in ``root/shards`` and notes them in ``root/acknowledged``."""

    def __init__(
        self, root: Path, kind: type[ShardSet] = ShardSet, shard_bytes: int = SHARD_BYTES
    ) -> None:
        self.shards = kind(root / "shards", "w0", shard_bytes, SPEC, PROVENANCE)
        self._fd = os.open(root / "acknowledged", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)

    def append(self, numbers: Iterable[int]) -> None:
        """Writes samples, without a commit."""
        for number in numbers:
            right, wrong = sample(number), sample(number + 1)
            # What fails its proof is written, too, and must never be taken for a sample.
            with suppress(DisprovenError):
                self.shards.append(right[0], *wrong[1:], proof=_disprove)
            self.shards.append(*right, proof=lambda: None)

    def deliver(self, numbers: list[int]) -> None:
        """Stores samples with one commit, and acknowledges them by a single write."""
        self.append(numbers)
        self.shards.commit()
        os.write(self._fd, (ACKNOWLEDGED + " ".join(map(str, numbers)) + "\n").encode())

    def close(self) -> None:
        self.shards.close()
        os.close(self._fd)


def acknowledged_in(text: bytes) -> set[int]:
    """Numbers of the samples that a note, or several, say are durable."""
    prefix = ACKNOWLEDGED.encode()
    return {
        int(number)
        for line in text.splitlines()
        if line.startswith(prefix)
        for number in line[len(prefix) :].split()
    }


def last_acknowledged(root: Path) -> int:
    """The greatest number acknowledged so far, -1 if there is none."""
    path = root / "acknowledged"
    return max(acknowledged_in(path.read_bytes()) if path.exists() else (), default=-1)
