"""RunScanner: counts the samples of a folder of shards while it grows."""

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from statetap_contract import CheckError, MissingError

from statetap_store.index_row import IndexRow
from statetap_store.layout import ShardLayout, token_bytes
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import load_index
from statetap_store.shard_names import shard_paths


@dataclass(slots=True)
class _Progress:
    """How far one shard was read."""

    layout: ShardLayout
    token_bytes: int
    #: Device and inode: a file of the same name that took the shard's place is another shard.
    identity: tuple[int, int]
    #: Rows before this one are durable: they never change and are not read again.
    num_durable: int = 0
    #: Samples after them, which recovery may yet void.
    late: tuple[IndexRow, ...] = ()


class RunScanner:
    """The samples of a growing folder; ``refresh`` reads only the index rows that are new.

    A shard that cannot be read is named in ``unreadable``, and its samples are not counted.
    Samples at the end of a shard count as soon as they are written, before they are committed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Why a shard cannot be read, one sentence each.
        self.unreadable: dict[Path, str] = {}
        self._forget()

    def _forget(self) -> None:
        self._progress: dict[Path, _Progress] = {}
        self._num_copies: dict[str, int] = {}
        self._num_tokens = 0
        self._num_bytes = 0
        self._num_duplicates = 0

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of all samples; a view that changes with ``refresh``."""
        return self._num_copies.keys()

    @property
    def num_samples(self) -> int:
        """Samples, each key once."""
        return len(self._num_copies)

    @property
    def num_duplicates(self) -> int:
        """Further samples with a key that was counted."""
        return self._num_duplicates

    @property
    def num_tokens(self) -> int:
        """Tokens of the samples, each key once."""
        return self._num_tokens

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples' states, ids and masks, each key once."""
        return self._num_bytes

    def shards_to_prove(self, key: str) -> list[Path]:
        """Shards in which the sample is among the last, which a crash may yet take."""
        return [
            path
            for path, progress in self._progress.items()
            if any(row.key == key for row in progress.late)
        ]

    def refresh(self) -> None:
        """Catches up with the folder; a missing folder holds no shards."""
        identities = _identities(self._folder)
        if any(identities.get(path) != seen.identity for path, seen in self._progress.items()):
            # A shard went away or was replaced, which no worker does. Start over.
            self._forget()
        self.unreadable = {}
        for path, identity in identities.items():
            try:
                if path not in self._progress:
                    self._progress[path] = _first_look(path, identity)
                self._read_on(path, self._progress[path])
            except (CheckError, MissingError) as error:
                self.unreadable[path] = error.message
            except OSError as error:
                self.unreadable[path] = f"cannot read {path} ({error.strerror}): check the disk"

    def _read_on(self, path: Path, progress: _Progress) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            index = load_index(fd, progress.layout, progress.num_durable)
        finally:
            os.close(fd)
        for row in progress.late:
            self._count(row, -1, progress.token_bytes)
        samples = tuple(index.samples)
        for row in samples:
            self._count(row, 1, progress.token_bytes)
        progress.num_durable = max(progress.num_durable, index.num_durable)
        progress.late = tuple(row for row in samples if row.sequence >= progress.num_durable)

    def _count(self, row: IndexRow, change: int, bytes_per_token: int) -> None:
        before = self._num_copies.get(row.key, 0)
        after = before + change
        if after:
            self._num_copies[row.key] = after
        else:
            del self._num_copies[row.key]
        if before and after:
            self._num_duplicates += change
        else:
            self._num_tokens += change * row.num_tokens
            self._num_bytes += change * row.num_tokens * bytes_per_token


def _first_look(path: Path, identity: tuple[int, int]) -> _Progress:
    with ShardFile.open(path) as shard:
        return _Progress(shard.header.layout, token_bytes(shard.header.spec), identity)


def _identities(folder: Path) -> dict[Path, tuple[int, int]]:
    """Device and inode of each shard, by name."""
    found = {}
    for path in shard_paths(folder):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found[path] = (status.st_dev, status.st_ino)
    return found
