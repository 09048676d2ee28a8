"""Reading a shard's index straight from the file, while it may be growing."""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from statetap_store.file_bytes import read_pieces, read_range
from statetap_store.index_row import ROW_BYTES, IndexRow
from statetap_store.layout import ByteRange, ShardLayout

_EMPTY_ROW: Final = bytes(ROW_BYTES)


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The rows of a shard, or those from some row on."""

    #: Rows whose checksum is right, ascending, void ones included.
    rows: tuple[IndexRow, ...]
    #: Numbers of rows before ``end`` that are empty or fail their checksum, ascending.
    damaged: tuple[int, ...]
    #: One past the last row whose checksum is right.
    end: int
    #: Numbers of rows from ``end`` on that are not empty, ascending: cut short by a crash, or
    #: damaged.
    junk: tuple[int, ...]
    #: This many first rows are durable, their payload included.
    num_durable: int

    @property
    def samples(self) -> Iterator[IndexRow]:
        """The rows that describe a sample."""
        return (row for row in self.rows if row.is_sample)


def load_index(fd: int, layout: ShardLayout, first: int = 0) -> ShardIndex:
    """Reads the rows from number ``first`` on.

    Holes are skipped, but nothing else is: what follows a damaged row is read.
    """
    found: dict[int, IndexRow] = {}
    last_written = first - 1
    for part in _written_parts(fd, layout, first):
        for offset, piece in read_pieces(fd, part):
            start = (offset - layout.index_offset) // ROW_BYTES
            data = bytes(piece)
            for position in range(0, len(data), ROW_BYTES):
                row_bytes = data[position : position + ROW_BYTES]
                if row_bytes != _EMPTY_ROW:
                    last_written = start + position // ROW_BYTES
                    row = IndexRow.decode(row_bytes, last_written)
                    if row is not None:
                        found[last_written] = row
    # A writer completes row k before it starts row k + 1. Where both are being written while
    # they are read here, k may look damaged and k + 1 right; read once more, k is right too.
    unreadable = {}
    for sequence in range(first, last_written + 1):
        if sequence not in found:
            row_bytes = read_range(fd, layout.row(sequence))
            row = IndexRow.decode(row_bytes, sequence)
            if row is not None:
                found[sequence] = row
            else:
                unreadable[sequence] = row_bytes
    end = max(found, default=first - 1) + 1
    return ShardIndex(
        rows=tuple(found[sequence] for sequence in sorted(found)),
        damaged=tuple(sequence for sequence in unreadable if sequence < end),
        end=end,
        junk=tuple(
            sequence
            for sequence, row_bytes in unreadable.items()
            if sequence >= end and row_bytes != _EMPTY_ROW
        ),
        num_durable=max((row.num_durable for row in found.values()), default=first),
    )


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
