"""Reading a shard's index straight from the file, while it may be growing."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from statetap_store.file_bytes import read_into, read_pieces, read_range
from statetap_store.index_row import (
    KEY_BYTES,
    ROW_BYTES,
    ROW_DTYPE,
    IndexRow,
    Rows,
    are_rows,
    samples_of,
)
from statetap_store.layout import ByteRange, ShardLayout


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The rows of a shard, or those from some row on."""

    #: Rows whose checksum is right, ascending, void ones included.
    rows: Rows
    #: Numbers of rows before ``end`` that are empty or fail their checksum, ascending.
    damaged: tuple[int, ...]
    #: One past the last row whose checksum is right.
    end: int
    #: Numbers of rows from ``end`` on that are not empty, ascending: cut short by a crash, or
    #: damaged.
    junk: tuple[int, ...]
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
    """
    found: list[Rows] = []
    suspects: list[int] = []
    for part in _written_parts(fd, layout, first):
        records = _read_records(fd, part)
        start = (part.offset - layout.index_offset) // ROW_BYTES
        sequences = np.arange(start, start + len(records))
        is_right = are_rows(records, sequences)
        found.append(records if is_right.all() else records[is_right])
        wrong = sequences[~is_right]
        suspects += wrong[
            records[~is_right].view(np.uint64).reshape(-1, ROW_BYTES // 8).any(axis=1)
        ].tolist()
    # One part is the rule. Copying a million rows takes as long as reading them.
    rows = found[0] if len(found) == 1 else np.concatenate([np.empty(0, ROW_DTYPE), *found])
    if len(rows) < _end(rows, first) - first or suspects:
        return _second_look(fd, layout, rows, suspects, first, is_sealed=is_sealed)
    return _settled(rows, (), (), first, is_sealed=is_sealed)


def find_row(fd: int, layout: ShardLayout, key: str) -> IndexRow | None:
    """The sample row that has this key now, None if there is none. Looks at keys alone."""
    for part in _written_parts(fd, layout, 0):
        for offset, piece in read_pieces(fd, part):
            data, start = bytes(piece), 0
            while (position := data.find(key.encode(), start)) >= 0:
                start = position + 1
                sequence, within = divmod(offset + position - layout.index_offset, ROW_BYTES)
                row = IndexRow.decode(read_range(fd, layout.row(sequence)), sequence)
                if within == KEY_BYTES.start and row is not None and row.is_sample:
                    return row
    return None


def _second_look(
    fd: int, layout: ShardLayout, rows: Rows, suspects: list[int], first: int, *, is_sealed: bool
) -> ShardIndex:
    """The index after another look at all rows that are missing or look damaged.

    A writer completes row k before it starts row k + 1. Where both are being written while they
    are read, k may look damaged and k + 1 right; read once more, k is right too.
    """
    last = max(int(rows["sequence"].max(initial=0)), *suspects, first)
    unread = np.setdiff1d(np.arange(first, last + 1), rows["sequence"].astype(np.int64))
    again: list[Rows] = []
    unreadable: dict[int, bytes] = {}
    for sequence in unread.tolist():
        data = read_range(fd, layout.row(sequence))
        if IndexRow.decode(data, sequence) is not None:
            again.append(np.frombuffer(data, ROW_DTYPE))
        else:
            unreadable[sequence] = data
    rows = np.concatenate([rows, *again])
    rows = rows[np.argsort(rows["sequence"])]
    end = _end(rows, first)
    damaged = tuple(sequence for sequence in unreadable if sequence < end)
    junk = tuple(sequence for sequence, data in unreadable.items() if sequence >= end and any(data))
    return _settled(rows, damaged, junk, first, is_sealed=is_sealed)


def _settled(
    rows: Rows, damaged: tuple[int, ...], junk: tuple[int, ...], first: int, *, is_sealed: bool
) -> ShardIndex:
    end = _end(rows, first)
    num_durable = end if is_sealed else int(rows["num_durable"].max(initial=first))
    return ShardIndex(rows, damaged, end, junk, num_durable)


def _read_records(fd: int, part: ByteRange) -> Rows:
    """Rows as they stand on disk, right or wrong; a row that the file ends in is left out."""
    records = np.empty(part.num_bytes // ROW_BYTES, ROW_DTYPE)
    num_read = read_into(fd, records.view(np.uint8).data, part.offset)
    return records[: num_read // ROW_BYTES]


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
