"""RunScanner: knows the samples of a folder of shards while it grows."""

import os
import time
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from statetap_contract import CaptureSpec, CheckError, MissingError

from statetap_store.header_copies import is_seal_begun
from statetap_store.index_row import ROW_DTYPE, IndexRow, Rows, keys_of
from statetap_store.layout import ShardLayout, token_bytes
from statetap_store.payload import is_payload_intact
from statetap_store.shard_file import ShardFile, unreadable
from statetap_store.shard_index import find_row, load_index
from statetap_store.shard_lock import is_locked
from statetap_store.shard_names import shard_paths

#: How long ago a sample may have been written for ``ShardTally`` to count it as recent.
RECENT_S: Final = 30.0

#: A folder that did not change for so long before it was listed, and has the same time of change
#: still, holds the same names. File systems' clocks tick slower than this.
_SETTLED_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class ShardTally:
    """What the index of one shard says of its samples, also of those that another one holds too."""

    #: Host name of the server that computed them.
    host: str
    num_samples: int
    num_tokens: int
    #: Tokens of those written in the last ``RECENT_S`` seconds.
    num_recent_tokens: int
    #: When the first and the last of them were written, nanoseconds since 1970; 0 without any.
    first_ns: int
    last_ns: int


@dataclass(slots=True, eq=False)
class _Progress:
    """How far one shard was read."""

    #: Device and inode: a file of the same name that took the shard's place is another shard.
    identity: tuple[int, int]
    spec: CaptureSpec
    layout: ShardLayout
    is_sealed: bool
    host: str
    #: Samples among the durable rows, their tokens, and when the first and the last were written.
    num_samples: int = 0
    num_tokens: int = 0
    first_ns: int = 0
    last_ns: int = 0
    #: Those of them that were written shortly before the shard was read last.
    recent: Rows = field(default_factory=lambda: np.empty(0, ROW_DTYPE))
    #: Rows before this one are durable: no writer changes them, and they are not read again.
    num_durable: int = 0
    #: Samples after them, which recovery may yet void.
    late: Rows = field(default_factory=lambda: np.empty(0, ROW_DTYPE))
    #: Checksums of those among them whose payload was proven.
    proven: set[int] = field(default_factory=set)
    #: Key and tokens of those of them that were counted here.
    counted: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """Whether nothing can change any more."""
        return self.is_sealed and not len(self.late)

    def count(self, samples: Rows) -> None:
        """Counts samples that became durable."""
        since_ns = time.time_ns() - int(RECENT_S * 1e9)
        self.recent = np.concatenate([_since(self.recent, since_ns), _since(samples, since_ns)])
        if len(samples):
            # Not the first and the last row: a merged shard has the times of those it came from.
            first_ns = int(samples["time_ns"].min())
            self.first_ns = min(self.first_ns or first_ns, first_ns)
            self.last_ns = max(self.last_ns, int(samples["time_ns"].max()))
            self.num_samples += len(samples)
            self.num_tokens += int(samples["num_tokens"].sum())

    def tally(self, since_ns: int) -> ShardTally:
        """Durable and late samples together."""
        times = [self.first_ns, self.last_ns, *self.late["time_ns"].tolist()]
        written = [time_ns for time_ns in times if time_ns]
        recent = [_since(rows, since_ns) for rows in (self.recent, self.late)]
        return ShardTally(
            host=self.host,
            num_samples=self.num_samples + len(self.late),
            num_tokens=self.num_tokens + int(self.late["num_tokens"].sum()),
            num_recent_tokens=sum(int(rows["num_tokens"].sum()) for rows in recent),
            first_ns=min(written, default=0),
            last_ns=max(written, default=0),
        )


class RunScanner:
    """The samples of a growing folder; ``refresh`` reads only the index rows that are new.

    A shard that cannot be read is named in ``unreadable``, and its samples are not counted.
    Samples at the end of a shard count as soon as they are written, before they are committed. At
    the end of one that no writer has open they count if their payload is proven.

    Only keys are kept in memory, and the rows of the last half minute; no payloads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Why a shard cannot be read.
        self.unreadable: dict[Path, CheckError | MissingError] = {}
        #: Device and inode of each shard when the folder was listed, when that was, and when the
        #: folder had been changed last.
        self._listed: dict[Path, tuple[int, int]] = {}
        self._listed_ns = self._changed_ns = 0
        self._forget()

    def _forget(self) -> None:
        self._shards: dict[Path, _Progress] = {}
        #: Shards in which something may be new.
        self._unfinished = list(self._listed)
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

    def tallies(self) -> dict[Path, ShardTally]:
        """What each shard that can be read says of its samples, by the clocks of their writers."""
        since_ns = time.time_ns() - int(RECENT_S * 1e9)
        return {path: shard.tally(since_ns) for path, shard in self._shards.items()}

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
        self._list_folder()
        self.unreadable = {}
        for shard in self._shards.values():
            self._discount_late(shard)
        while not self._read_all(leave_out):
            # A shard cannot be read any more, and is left out from here on.
            self._forget()
        self._unfinished = [path for path in self._unfinished if not self._is_finished(path)]
        # Only now: a key that is late in one shard and durable in another counts where it is safe.
        for path, shard in self._shards.items():
            self._count_late(path, shard)

    def _list_folder(self) -> None:
        """Raises MissingError, kind ``folder-unreachable``."""
        listed_ns = time.time_ns()
        try:
            changed_ns = self._folder.stat().st_mtime_ns
        except OSError:
            # It is not there, or listing it says what is wrong.
            changed_ns = 0
        if changed_ns == self._changed_ns and self._listed_ns - changed_ns > _SETTLED_NS:
            return
        self._listed = _identities(self._folder)
        self._listed_ns, self._changed_ns = listed_ns, changed_ns
        if any(self._listed.get(path) != shard.identity for path, shard in self._shards.items()):
            # A shard went away or was replaced, which no worker does. Start over.
            self._forget()
        self._unfinished = [path for path in self._listed if not self._is_finished(path)]

    def _is_finished(self, path: Path) -> bool:
        return path in self._shards and self._shards[path].is_finished

    def _read_all(self, leave_out: Path | None) -> bool:
        """Reads what is new; False when a shard of which samples are counted cannot be read."""
        for path in self._unfinished:
            if path == leave_out or path in self.unreadable:
                continue
            try:
                self._read_on(path)
            except (CheckError, MissingError) as error:
                self.unreadable[path] = error
            except OSError as error:
                self.unreadable[path] = unreadable(path, error)
            if path in self.unreadable and path in self._shards:
                return False
        return True

    def _read_on(self, path: Path) -> None:
        shard = self._shards.get(path) or _first_look(path, self._listed[path])
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not shard.is_sealed and is_seal_begun(fd):
                shard.is_sealed = _first_look(path, shard.identity).is_sealed
            index = load_index(fd, shard.layout, shard.num_durable, is_sealed=shard.is_sealed)
            shard.num_durable = max(shard.num_durable, index.num_durable)
            num_settled = int(np.searchsorted(index.samples["sequence"], shard.num_durable))
            # A copy: a view would keep the durable rows in memory.
            late = index.samples[num_settled:].copy()
            shard.late = late if is_locked(path) else _proven(fd, shard, late)
        finally:
            os.close(fd)
        self._shards[path] = shard
        shard.count(index.samples[:num_settled])
        self._count_durable(path, shard, index.samples[:num_settled])

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
        header = shard.header
        return _Progress(
            identity, header.spec, header.layout, header.is_sealed, header.provenance.host
        )


def _since(samples: Rows, since_ns: int) -> Rows:
    """Copies of the rows that were written at that time or later."""
    late: Rows = samples[samples["time_ns"] >= since_ns]
    return late


def _proven(fd: int, shard: _Progress, late: Rows) -> Rows:
    """Those of the last samples that are there, payload and all."""
    is_proven = []
    for sample in late:
        checksum = int(sample["row_xxh3"])
        if checksum not in shard.proven and is_payload_intact(
            fd, shard.layout, IndexRow.of(sample)
        ):
            shard.proven.add(checksum)
        is_proven.append(checksum in shard.proven)
    proven: Rows = late[np.array(is_proven, np.bool_)]
    return proven


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
