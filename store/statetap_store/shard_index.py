"""Reading a shard's index straight from the file, while it may be growing.

A page that the disk does not give costs the rows in it, and no others.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from statetap_store.file_bytes import PIECE_BYTES, read_into, read_range
from statetap_store.index_row import (
    KEY_BYTES,
    ROW_BYTES,
    ROW_DTYPE,
    IndexRow,
    Rows,
    are_rows,
    samples_of,
)
from statetap_store.layout import PAGE_BYTES, ByteRange, ShardLayout

_EMPTY_ROW: Final = bytes(ROW_BYTES)


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The rows of a shard, or those from some row on."""

    #: Rows whose checksum is right, ascending, void ones included.
    rows: Rows
    #: Numbers of rows before ``end`` that are empty, fail their checksum or cannot be read,
    #: ascending.
    damaged: tuple[int, ...]
    #: One past the last row whose checksum is right.
    end: int
    #: Numbers of rows from ``end`` on that are not empty, ascending: cut short by a crash, damaged
    #: or not to be read.
    junk: tuple[int, ...]
    #: Those of ``damaged`` and ``junk`` that the disk does not give.
    unreadable: tuple[int, ...]
    #: This many first rows are durable, their payload included.
    num_durable: int

    @cached_property
    def samples(self) -> Rows:
        """The rows that describe a sample."""
        return samples_of(self.rows)

    @property
    def late(self) -> Rows:
        """The rows that a crash may yet take, void ones included."""
        return self.rows[self.rows["sequence"] >= self.num_durable]


def load_index(
    fd: int, layout: ShardLayout, first: int = 0, *, is_sealed: bool = False
) -> ShardIndex:
    """Reads the rows from number ``first`` on. In a sealed shard all of them are durable.

    Holes are skipped, but nothing else is: what follows a damaged row is read.

    Raises:
        OSError: the disk gives nothing of the whole index.
    """
    found: list[Rows] = []
    suspects: list[int] = []
    disk_error: OSError | None = None
    is_any_given = first > 0
    for part in _written_parts(fd, layout, first):
        read = _read_part(fd, part)
        disk_error = disk_error or read.disk_error
        is_any_given |= bool(read.is_given.any())
        records = read.records
        start = (part.offset - layout.index_offset) // ROW_BYTES
        sequences = np.arange(start, start + len(records))
        is_right = are_rows(records, sequences)
        found.append(records if is_right.all() else records[is_right])
        if not is_right.all():
            is_written = records.view(np.uint64).reshape(-1, ROW_BYTES // 8).any(axis=1)
            suspects += sequences[~is_right & (is_written | ~read.is_given)].tolist()
    if disk_error is not None and not is_any_given:
        raise disk_error
    # One part is the rule. Copying a million rows takes as long as reading them.
    rows = found[0] if len(found) == 1 else np.concatenate([np.empty(0, ROW_DTYPE), *found])
    if len(rows) < _end(rows, first) - first or suspects:
        return _second_look(fd, layout, rows, suspects, first, is_sealed=is_sealed)
    return _settled(rows, first, is_sealed=is_sealed)


def read_row(fd: int, layout: ShardLayout, sequence: int) -> bytes:
    """A row's 128 bytes as they stand on disk; empty where the disk does not give them."""
    try:
        return read_range(fd, layout.row(sequence))
    except OSError:
        return b""


def read_rows(fd: int, layout: ShardLayout, sequences: range) -> tuple[Rows, OSError | None]:
    """Those of adjoining rows that are right, and why others cannot be read."""
    where = ByteRange(layout.row(sequences.start).offset, ROW_BYTES * len(sequences))
    read = _read_part(fd, where)
    is_right = are_rows(read.records, np.array(sequences[: len(read.records)]))
    return read.records[is_right], read.disk_error


def find_row(fd: int, layout: ShardLayout, key: str) -> IndexRow | None:
    """The sample row that has this key now, None if there is none. Looks at keys alone."""
    for part in _written_parts(fd, layout, 0):
        for offset in range(part.offset, part.end, PIECE_BYTES):
            piece = ByteRange(offset, min(PIECE_BYTES, part.end - offset))
            data, start = _read_part(fd, piece).records.tobytes(), 0
            while (position := data.find(key.encode(), start)) >= 0:
                start = position + 1
                sequence, within = divmod(offset + position - layout.index_offset, ROW_BYTES)
                row = IndexRow.decode(read_row(fd, layout, sequence), sequence)
                if within == KEY_BYTES.start and row is not None and row.is_sample:
                    return row
    return None


def _second_look(
    fd: int, layout: ShardLayout, rows: Rows, suspects: list[int], first: int, *, is_sealed: bool
) -> ShardIndex:
    """The index after another look at all rows that are missing or look damaged.

    A writer completes row k before it starts row k + 1. Where both are being written while they
    are read, k may look damaged and k + 1 right; read once more, k is right too. What looks empty
    is looked at only below a right row.
    """
    looked_at = {sequence: read_row(fd, layout, sequence) for sequence in suspects}
    rows = _with_right(rows, looked_at)
    unseen = (sequence for sequence in _missing(rows, first) if sequence not in looked_at)
    gaps = {sequence: read_row(fd, layout, sequence) for sequence in unseen}
    rows = _with_right(rows, gaps)
    looked_at |= gaps
    end = _end(rows, first)
    damaged = _missing(rows, first)
    junk = [number for number in suspects if number >= end and looked_at[number] != _EMPTY_ROW]
    unreadable = [number for number in (*damaged, *junk) if not looked_at[number]]
    return _settled(rows, first, damaged, junk, unreadable, is_sealed=is_sealed)


def _with_right(rows: Rows, looked_at: dict[int, bytes]) -> Rows:
    """The rows and those that turned out to be right, ascending."""
    right = [
        np.frombuffer(data, ROW_DTYPE)
        for sequence, data in looked_at.items()
        if IndexRow.decode(data, sequence) is not None
    ]
    if not right:
        return rows
    rows = np.concatenate([rows, *right])
    return rows[np.argsort(rows["sequence"])]


def _missing(rows: Rows, first: int) -> list[int]:
    """Numbers of the rows from ``first`` on that are not there, below the last that is."""
    numbers = np.arange(first, _end(rows, first))
    missing: list[int] = np.setdiff1d(numbers, rows["sequence"].astype(np.int64)).tolist()
    return missing


def _settled(
    rows: Rows,
    first: int,
    damaged: Sequence[int] = (),
    junk: Sequence[int] = (),
    unreadable: Sequence[int] = (),
    *,
    is_sealed: bool,
) -> ShardIndex:
    end = _end(rows, first)
    num_durable = end if is_sealed else int(rows["num_durable"].max(initial=first))
    return ShardIndex(rows, tuple(damaged), end, tuple(junk), tuple(unreadable), num_durable)


@dataclass(frozen=True, slots=True)
class _Part:
    """Adjoining rows as they stand on disk, right or wrong."""

    #: A row that the file ends in is left out; one that the disk does not give is zero.
    records: Rows
    #: Which of them the disk gives.
    is_given: npt.NDArray[np.bool_]
    #: Why it does not give the others.
    disk_error: OSError | None


def _read_part(fd: int, where: ByteRange) -> _Part:
    records = np.empty(where.num_bytes // ROW_BYTES, ROW_DTYPE)
    is_given = np.ones(len(records), np.bool_)
    buffer = records.view(np.uint8).data
    disk_error: OSError | None = None
    try:
        num_read = read_into(fd, buffer, where.offset)
    except OSError as error:
        disk_error, num_read = error, 0
        for start in range(where.offset - where.offset % PAGE_BYTES, where.end, PAGE_BYTES):
            page = slice(max(start - where.offset, 0), start + PAGE_BYTES - where.offset)
            piece = buffer[page]
            try:
                num_read += read_into(fd, piece, where.offset + page.start)
            except OSError:
                num_read += len(piece)
                piece[:] = bytes(len(piece))
                is_given[page.start // ROW_BYTES : page.stop // ROW_BYTES] = False
    num_rows = num_read // ROW_BYTES
    return _Part(records[:num_rows], is_given[:num_rows], disk_error)


def _end(rows: Rows, first: int) -> int:
    return int(rows["sequence"][-1]) + 1 if len(rows) else first


def _written_parts(fd: int, layout: ShardLayout, first: int) -> Iterator[ByteRange]:
    """The index's parts that are no holes, from row ``first`` on, in whole rows."""
    position = layout.row(first).offset
    while position < layout.index.end:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            end = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        start -= (start - layout.index_offset) % ROW_BYTES
        end += (layout.index_offset - end) % ROW_BYTES
        position = min(end, layout.index.end)
        if start < position:
            yield ByteRange(start, position - start)
