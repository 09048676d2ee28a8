"""RunScanner: knows the samples of a folder of shards while it grows."""

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from statetap_contract import CaptureSpec, CheckError, MissingError

from statetap_store.index_row import ROW_DTYPE, Rows, keys_of
from statetap_store.layout import ShardLayout, token_bytes
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import find_row, load_index
from statetap_store.shard_names import shard_paths


@dataclass(slots=True, eq=False)
class _Progress:
    """How far one shard was read."""

    #: Device and inode: a file of the same name that took the shard's place is another shard.
    identity: tuple[int, int]
    spec: CaptureSpec
    layout: ShardLayout
    is_sealed: bool
    #: Rows before this one are durable: they never change and are not read again.
    num_durable: int = 0
    #: Samples after them, which recovery may yet void.
    late: Rows = field(default_factory=lambda: np.empty(0, ROW_DTYPE))
    #: Key and tokens of those of them that were counted here.
    counted: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether nothing can change any more."""
        return self.is_sealed and not len(self.late)


class RunScanner:
    """The samples of a growing folder; ``refresh`` reads only the index rows that are new.

    A shard that cannot be read is named in ``unreadable``, and its samples are not counted.
    Samples at the end of a shard count as soon as they are written, before they are committed.

    Only keys are kept in memory, no rows and no payloads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Why a shard cannot be read.
        self.unreadable: dict[Path, CheckError | MissingError] = {}
        self._forget()

    def _forget(self) -> None:
        self._shards: dict[Path, _Progress] = {}
        #: The shard in which each key was counted.
        self._home: dict[str, Path] = {}
        self._num_durable = 0
        self._num_tokens = 0
        self._num_bytes = 0

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of all samples; a view that changes with ``refresh``."""
        return self._home.keys()

    @property
    def num_samples(self) -> int:
        """Samples, each key once."""
        return len(self._home)

    @property
    def num_duplicates(self) -> int:
        """Further samples with a key that was counted."""
        num_late = sum(len(shard.late) for shard in self._shards.values())
        return self._num_durable + num_late - len(self._home)

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
        return {path: shard.spec for path, shard in self._shards.items()}

    def has_durable(self, key: str) -> bool:
        """Whether the sample is there and beyond the reach of any crash.

        Its row is read again, for a sample that ``repair`` gave up is not there any more. Where
        that is so, all is forgotten, and the next ``refresh`` starts over.
        """
        path = self._home.get(key)
        if path is None or key.encode() in self._shards[path].late["key"]:
            return False
        if not _holds(path, self._shards[path].layout, key):
            self._forget()
            return False
        return True

    def late_in(self, key: str) -> list[Path]:
        """Shards in which the sample is among the last, which a crash may yet take."""
        return [path for path, shard in self._shards.items() if key.encode() in shard.late["key"]]

    def refresh(self, leave_out: Path | None = None) -> None:
        """Catches up with the folder; a missing folder holds no shards.

        Args:
            leave_out: a shard that is not looked at, as if it were not there.
        """
        found = _identities(self._folder)
        if leave_out is not None:
            found.pop(leave_out, None)
        if any(found.get(path) != shard.identity for path, shard in self._shards.items()):
            # A shard went away or was replaced, which no worker does. Start over.
            self._forget()
        self.unreadable = {}
        for shard in self._shards.values():
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
        # Only now: a key that is late in one shard and durable in another counts where it is safe.
        for path, shard in self._shards.items():
            self._count_late(path, shard)

    def _read_on(self, path: Path, identity: tuple[int, int]) -> None:
        shard = self._shards.get(path)
        if shard is None:
            shard = self._shards[path] = _first_look(path, identity)
        elif shard.is_finished:
            return
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size < shard.layout.file_bytes:
                # It was sealed meanwhile.
                shard.is_sealed = _first_look(path, identity).is_sealed
            index = load_index(fd, shard.layout, shard.num_durable, is_sealed=shard.is_sealed)
        finally:
            os.close(fd)
        shard.num_durable = max(shard.num_durable, index.num_durable)
        num_settled = int(np.searchsorted(index.samples["sequence"], shard.num_durable))
        self._count_durable(path, shard, index.samples[:num_settled])
        # A copy: a view would keep the durable rows in memory.
        shard.late = index.samples[num_settled:].copy()

    def _count_durable(self, path: Path, shard: _Progress, samples: Rows) -> None:
        keys = keys_of(samples)
        self._num_durable += len(samples)
        new = dict.fromkeys(keys, path)
        if len(new) == len(keys) and self._home.keys().isdisjoint(new):
            self._home.update(new)
            self._count_tokens(shard, int(samples["num_tokens"].sum()))
            return
        for key, num_tokens in zip(keys, samples["num_tokens"].tolist(), strict=True):
            if key not in self._home:
                self._home[key] = path
                self._count_tokens(shard, num_tokens)

    def _count_late(self, path: Path, shard: _Progress) -> None:
        lengths = shard.late["num_tokens"].tolist()
        for key, num_tokens in zip(keys_of(shard.late), lengths, strict=True):
            if key not in self._home:
                self._home[key] = path
                shard.counted.append((key, num_tokens))
                self._count_tokens(shard, num_tokens)

    def _discount_late(self, shard: _Progress) -> None:
        for key, num_tokens in shard.counted:
            del self._home[key]
            self._count_tokens(shard, -num_tokens)
        shard.counted = []

    def _count_tokens(self, shard: _Progress, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._num_bytes += num_tokens * token_bytes(shard.spec)


def _first_look(path: Path, identity: tuple[int, int]) -> _Progress:
    with ShardFile.open_whole(path) as shard:
        return _Progress(identity, shard.header.spec, shard.header.layout, shard.header.is_sealed)


def _holds(path: Path, layout: ShardLayout, key: str) -> bool:
    """Whether a shard's index has a sample row with this key now."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return find_row(fd, layout, key) is not None
        finally:
            os.close(fd)
    except OSError:
        return False


def _identities(folder: Path) -> dict[Path, tuple[int, int]]:
    """Device and inode of each shard, by name."""
    found = {}
    for path in shard_paths(folder):
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MissingError(
                "folder-unreachable",
                f"cannot look into {folder} ({error.strerror}): check its permissions",
            ) from error
        found[path] = (status.st_dev, status.st_ino)
    return found
