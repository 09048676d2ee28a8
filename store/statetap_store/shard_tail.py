"""ShardTail: the durable samples of one growing shard, each given once."""

import os
import time
from pathlib import Path
from typing import Final

import numpy as np
from statetap_contract import MissingError

from statetap_store.header_copies import is_seal_begun
from statetap_store.index_row import ROW_DTYPE, IndexRow, Rows
from statetap_store.layout import ShardLayout
from statetap_store.payload import is_payload_intact
from statetap_store.shard_file import ShardFile, unreadable
from statetap_store.shard_index import ShardIndex, load_index

#: A file that did not change for so long before it was read, and has the same time of change
#: still, holds the same bytes. File systems' clocks tick slower than this.
_SETTLED_NS: Final = 2_000_000_000

#: Seconds between two looks at a sealed shard, and between two proofs of what was given of a shard
#: that changes: only ``repair`` takes samples back.
_PROOF_INTERVAL_S: Final = 60.0

_NOTHING: Final = np.empty(0, ROW_DTYPE)

#: Device, inode, length and time of change.
_Mark = tuple[int, int, int, int]


class ShardTail:
    """Follows one shard, whoever writes it, and gives each sample once, when it is durable.

    A shard that did not change costs one ``stat``. No keys are kept in memory.

    Samples at the end, which their writer may not have committed, are given when nothing was
    written between two looks: they are proven and synced from here.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: _Mark | None = None
        #: Whether the shard was read long enough after it was changed.
        self._is_settled = False
        #: As the header said when it was read last.
        self._layout: ShardLayout | None = None
        self._is_sealed = False
        #: Whether there are samples that are not given yet.
        self._has_late = False
        #: Rows before this one are given, and the checksums of those that are samples, combined.
        self._num_given = 0
        self._checksum = np.uint64(0)
        #: When all rows were read last, and whether the shard has changed since.
        self._proven_at = -_PROOF_INTERVAL_S
        self._is_proven = False

    def read_new(self) -> Rows | None:
        """Samples that are new since the last call; None when given ones are there no more.

        After None, and after an error, the tail is of no use: start over with another one.

        Raises:
            MissingError: kind ``shard-missing`` or ``shard-unreachable``.
            CheckError: kinds of ``ShardFile.open_whole``: it cannot be read.
        """
        is_proof_due = time.monotonic() - self._proven_at >= _PROOF_INTERVAL_S
        if self._is_finished and not is_proof_due:
            return _NOTHING
        read_ns = time.time_ns()
        mark = self._look()
        is_quiet = mark == self._mark
        if is_quiet and self._is_finished:
            self._proven_at = time.monotonic()
            return _NOTHING
        is_read = self._is_settled and not self._has_late
        if is_quiet and is_read and (self._is_proven or not is_proof_due):
            return _NOTHING
        if self._mark is not None and mark[:2] != self._mark[:2]:
            return None
        if self._mark is not None and mark[2] != self._mark[2]:
            # It was sealed or cut short: no writer changes its length.
            self._layout = None
        self._mark = mark
        self._is_settled = read_ns - mark[3] > _SETTLED_NS
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return self._read_on(fd, is_proof_due=is_proof_due, is_quiet=is_quiet)
            finally:
                os.close(fd)
        except OSError as error:
            raise unreadable(self._path, error) from error

    @property
    def _is_finished(self) -> bool:
        return self._is_sealed and self._is_settled and self._is_proven and not self._has_late

    def _look(self) -> _Mark:
        try:
            status = self._path.stat()
        except FileNotFoundError as error:
            raise MissingError(
                "shard-missing", f"there is no shard {self._path}: check the path"
            ) from error
        except OSError as error:
            raise unreadable(self._path, error) from error
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns

    def _read_on(self, fd: int, *, is_proof_due: bool, is_quiet: bool) -> Rows | None:
        layout = self._layout
        if layout is None or is_proof_due or is_seal_begun(fd):
            with ShardFile.open_whole(self._path) as shard:
                self._layout = layout = shard.header.layout
                self._is_sealed = shard.header.is_sealed
        first = 0 if is_proof_due else self._num_given
        index = load_index(fd, layout, first, is_sealed=self._is_sealed)
        samples = index.samples
        self._is_proven = first == 0
        if self._is_proven:
            self._proven_at = time.monotonic()
            num_given = int(np.searchsorted(samples["sequence"], self._num_given))
            if _combined(samples[:num_given]) != self._checksum:
                return None
            samples = samples[num_given:]
        end = self._end_of_durable(fd, layout, index, is_quiet=is_quiet)
        new = samples[: int(np.searchsorted(samples["sequence"], end))]
        self._checksum ^= _combined(new)
        self._num_given = end
        return new

    def _end_of_durable(
        self, fd: int, layout: ShardLayout, index: ShardIndex, *, is_quiet: bool
    ) -> int:
        """One past the last row that no crash can take any more."""
        end = max(self._num_given, index.num_durable)
        late = index.samples[int(np.searchsorted(index.samples["sequence"], end)) :]
        self._has_late = len(late) > 0 and not is_quiet
        if not is_quiet or not len(late):
            return end
        for row in late:
            # What is not whole is looked at again when the shard changes.
            if not is_payload_intact(fd, layout, IndexRow.of(row)):
                break
            end = int(row["sequence"]) + 1
        os.fdatasync(fd)
        return end


def _combined(samples: Rows) -> np.uint64:
    """Another number for every other set of rows, as far as 64 bits can tell."""
    return np.uint64(np.bitwise_xor.reduce(samples["row_xxh3"], initial=np.uint64(0)))
