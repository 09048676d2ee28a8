"""RunScanner: knows the samples of a folder of shards while it grows."""

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from statetap_contract import CaptureSpec, CheckError, MissingError

from statetap_store.file_bytes import read_range
from statetap_store.index_row import ROW_DTYPE, IndexRow, Rows, keys_of
from statetap_store.layout import ShardLayout, token_bytes
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import load_index
from statetap_store.shard_names import shard_paths

#: A sample's place is one number: that of its shard, and in these lower bits that of its row.
_ROW_BITS: Final = 40


@dataclass(slots=True)
class _Progress:
    """How far one shard was read."""

    path: Path
    number: int
    #: Device and inode: a file of the same name that took the shard's place is another shard.
    identity: tuple[int, int]
    spec: CaptureSpec
    layout: ShardLayout
    is_sealed: bool
    #: Rows before this one are durable: they never change and are not read again.
    num_durable: int = 0
    #: Samples after them, which recovery may yet void.
    late: Rows = field(default_factory=lambda: np.empty(0, ROW_DTYPE))
    #: Those of them whose key was counted here.
    counted: list[np.void] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether nothing can change any more."""
        return self.is_sealed and not len(self.late)


class RunScanner:
    """The samples of a growing folder; ``refresh`` reads only the index rows that are new.

    A shard that cannot be read is named in ``unreadable``, and its samples are not counted.
    Samples at the end of a shard count as soon as they are written, before they are committed.

    Only keys and places are kept: about 250 bytes a sample.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Why a shard cannot be read.
        self.unreadable: dict[Path, CheckError | MissingError] = {}
        self._forget()

    def _forget(self) -> None:
        self._shards: dict[Path, _Progress] = {}
        self._by_number: list[_Progress] = []
        self._places: dict[str, int] = {}
        self._num_rows = 0
        self._num_tokens = 0
        self._num_bytes = 0

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of all samples; a view that changes with ``refresh``."""
        return self._places.keys()

    @property
    def num_samples(self) -> int:
        """Samples, each key once."""
        return len(self._places)

    @property
    def num_duplicates(self) -> int:
        """Further samples with a key that was counted."""
        return (
            self._num_rows + sum(len(shard.late) for shard in self._by_number) - len(self._places)
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the samples, each key once."""
        return self._num_tokens

    @property
    def num_bytes(self) -> int:
        """Bytes of the samples' states, ids and masks, each key once."""
        return self._num_bytes

    @property
    def specs(self) -> dict[Path, CaptureSpec]:
        """The capture spec of each shard that can be read."""
        return {shard.path: shard.spec for shard in self._by_number}

    def durable_in(self, key: str) -> Path | None:
        """The shard in which the sample is, beyond the reach of any crash.

        Its row is read again: a sample that ``repair`` gave up since is not there any more.
        """
        place = self._places.get(key)
        if place is None:
            return None
        shard, sequence = self._by_number[place >> _ROW_BITS], place & ((1 << _ROW_BITS) - 1)
        if sequence >= shard.num_durable:
            return None
        try:
            row = _read_row(shard, sequence)
        except OSError:
            row = None
        if row is None or row.key != key:
            self._forget()
            return None
        return shard.path

    def late_in(self, key: str) -> list[Path]:
        """Shards in which the sample is among the last, which a crash may yet take."""
        return [
            shard.path
            for shard in self._by_number
            if len(shard.late) and key.encode() in shard.late["key"]
        ]

    def refresh(self, leave_out: Path | None = None) -> None:
        """Catches up with the folder; a missing folder holds no shards.

        Args:
            leave_out: a shard that is not looked at, as if it were not there.
        """
        found = _identities(self._folder)
        if leave_out is not None:
            found.pop(leave_out, None)
        if any(found.get(shard.path) != shard.identity for shard in self._by_number):
            # A shard went away or was replaced, which no worker does. Start over.
            self._forget()
        self.unreadable = {}
        for shard in self._by_number:
            self._discount_late(shard)
        for path, identity in found.items():
            try:
                self._read_on(path, identity)
            except (CheckError, MissingError) as error:
                self.unreadable[path] = error
            except OSError as error:
                self.unreadable[path] = CheckError(
                    "shard-unreadable", f"cannot read {path} ({error.strerror}): check the disk"
                )
        # Only now: a key that is durable in one shard and late in another counts where it is safe.
        for shard in self._by_number:
            self._count_late(shard)

    def _read_on(self, path: Path, identity: tuple[int, int]) -> None:
        shard = self._shards.get(path)
        if shard is None:
            shard = _first_look(path, len(self._by_number), identity)
            self._shards[path] = shard
            self._by_number.append(shard)
        elif shard.is_finished:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size < shard.layout.file_bytes:
                # It was sealed meanwhile.
                shard.is_sealed = _first_look(path, shard.number, identity).is_sealed
            index = load_index(fd, shard.layout, shard.num_durable, is_sealed=shard.is_sealed)
        finally:
            os.close(fd)
        num_durable = max(shard.num_durable, index.num_durable)
        is_durable = index.samples["sequence"] < num_durable
        self._count_durable(shard, index.samples[is_durable])
        shard.late = index.samples[~is_durable]
        shard.num_durable = num_durable

    def _count_durable(self, shard: _Progress, samples: Rows) -> None:
        keys = keys_of(samples)
        places = ((shard.number << _ROW_BITS) + samples["sequence"].astype(np.int64)).tolist()
        self._num_rows += len(samples)
        if self._places.keys().isdisjoint(keys) and len(set(keys)) == len(keys):
            self._places.update(zip(keys, places, strict=True))
            self._count_tokens(shard, int(samples["num_tokens"].sum()))
            return
        for key, place, num_tokens in zip(
            keys, places, samples["num_tokens"].tolist(), strict=True
        ):
            if self._places.setdefault(key, place) == place:
                self._count_tokens(shard, num_tokens)

    def _count_late(self, shard: _Progress) -> None:
        base = shard.number << _ROW_BITS
        for sample in shard.late:
            key, place = sample["key"].decode(), base + int(sample["sequence"])
            if self._places.setdefault(key, place) == place:
                shard.counted.append(sample)
                self._count_tokens(shard, int(sample["num_tokens"]))

    def _discount_late(self, shard: _Progress) -> None:
        for sample in shard.counted:
            del self._places[sample["key"].decode()]
            self._count_tokens(shard, -int(sample["num_tokens"]))
        shard.counted = []

    def _count_tokens(self, shard: _Progress, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._num_bytes += num_tokens * token_bytes(shard.spec)


def _first_look(path: Path, number: int, identity: tuple[int, int]) -> _Progress:
    with ShardFile.open(path) as shard:
        shard.check_length()
        header = shard.header
        return _Progress(path, number, identity, header.spec, header.layout, header.is_sealed)


def _read_row(shard: _Progress, sequence: int) -> IndexRow | None:
    fd = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return IndexRow.decode(read_range(fd, shard.layout.row(sequence)), sequence)
    finally:
        os.close(fd)


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
