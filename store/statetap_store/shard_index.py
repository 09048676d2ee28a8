"""Reading a shard's index straight from the file, while it may be growing."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from statetap_store.file_bytes import read_pieces, read_range
from statetap_store.index_row import (
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
    pieces = [np.empty(0, ROW_DTYPE)]
    suspects: list[int] = []
    end = first
    for part in _written_parts(fd, layout, first):
        for offset, piece in read_pieces(fd, part):
            start = (offset - layout.index_offset) // ROW_BYTES
            # A copy: the buffer behind ``piece`` is used again.
            data = bytes(piece[: len(piece) - len(piece) % ROW_BYTES])
            records = np.frombuffer(data, ROW_DTYPE)
            sequences = np.arange(start, start + len(records))
            is_right = are_rows(records, sequences)
            is_used = np.frombuffer(data, np.uint64).reshape(len(records), -1).any(axis=1)
            pieces.append(records[is_right])
            suspects += sequences[is_used & ~is_right].tolist()
            end = max(end, int(sequences[is_right].max(initial=-1)) + 1)
    rows = np.concatenate(pieces)
    if len(rows) < end - first or suspects:
        return _second_look(fd, layout, rows, suspects, first, is_sealed=is_sealed)
    return _settled(rows, (), (), first, is_sealed=is_sealed)


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
