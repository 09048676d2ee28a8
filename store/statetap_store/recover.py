"""Recovery: what a writer does with the end of a shard that was not closed in order.

Which rows can a crash have harmed? Each row carries ``num_durable``, the number of rows that an
earlier, successful fdatasync covered when it was written. The greatest such number among the
rows that pass their checksum is therefore a lower bound on what is durable, and only the rows
from there on can be incomplete: those of the last commit, and those that no commit covered yet.
Their payloads are all verified, however many they are, and those before are left alone.

A row that is not proven becomes a void row, in place, and what follows it stays. Only what
stands behind the last row with a right checksum is cleared: nothing can follow it. Damaged rows
before the bound are corruption, no matter of a crash: they stay as they are, for ``verify`` to
report, and so do their token ranges.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from statetap_store.file_bytes import read_pieces, write_at
from statetap_store.index_row import ROW_BYTES, IndexRow, Rows, samples_of
from statetap_store.layout import ByteRange, ShardLayout
from statetap_store.payload import is_payload_intact, payload_parts
from statetap_store.shard_index import ShardIndex


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found. After a sync of the file, all of it is durable."""

    #: Rows of the samples that were durable, ascending.
    durable: Rows
    #: Rows of the later samples whose payload is proven, ascending.
    proven: tuple[IndexRow, ...]
    #: Void rows to be written: those that replace unproven ones, and late ones that stand already.
    voids: tuple[IndexRow, ...]
    #: Numbers of the rows to be cleared.
    junk: tuple[int, ...]
    #: Number of the next row, and the first free token.
    next_sequence: int
    next_token: int


def plan_recovery(fd: int, layout: ShardLayout, index: ShardIndex) -> Recovery:
    """Decides, without writing, which rows stay and which become void."""
    bound = index.num_durable
    durable = index.rows[: len(index.rows) - len(index.late)]
    late = {row.sequence: row for row in map(IndexRow.of, index.late)}
    proven = {
        sequence: row
        for sequence, row in late.items()
        if not row.is_sample or is_payload_intact(fd, layout, row)
    }
    token_end = _token_end(durable)
    if bound - 1 in index.damaged:
        # Its tokens are unknown, but they end where those of a later row start.
        token_end = max(token_end, min(row.token_offset for row in late.values()))
    standing = (row for row in proven.values() if not row.is_sample)
    voids = (*_voids(late, proven, token_end, range(bound, index.end)), *standing)
    return Recovery(
        durable=samples_of(durable),
        proven=tuple(row for row in proven.values() if row.is_sample),
        voids=voids,
        junk=index.junk,
        next_sequence=index.end,
        next_token=max([token_end, *(row.token_end for row in (*proven.values(), *voids))]),
    )


def _token_end(rows: Rows) -> int:
    """The first token after those of all rows."""
    ends = rows["token_offset"] + rows["num_tokens"].astype(np.uint64)
    return int(ends.max(initial=0))


def _voids(
    late: dict[int, IndexRow], proven: dict[int, IndexRow], token_end: int, sequences: range
) -> Iterator[IndexRow]:
    """Void rows for all of ``sequences`` that is not proven.

    A void row claims the tokens up to the next proven row, and none when there is no such row:
    then its tokens are free again.
    """
    #: First token of all proven rows from each one on.
    limits: dict[int, int] = {}
    limit: int | None = None
    for sequence in reversed(sequences):
        if sequence in proven:
            start = proven[sequence].token_offset
            limit = start if limit is None else min(limit, start)
        elif limit is not None:
            limits[sequence] = limit
    for sequence in sequences:
        if sequence in proven:
            token_end = max(token_end, proven[sequence].token_end)
            continue
        start, token_end = token_end, max(token_end, limits.get(sequence, token_end))
        key = late[sequence].key if sequence in late else ""
        yield IndexRow.void(key, sequence, start, token_end - start, sequences.start)


def write_recovery(fd: int, layout: ShardLayout, recovery: Recovery) -> None:
    """Writes void rows, clears junk, and writes every late row again, void ones too.

    Writing them again, payload and all, is not idle. Their keys are about to be treated as
    stored, or their tokens as free, and what was just read may have come from memory: from a
    writer that was killed before its fdatasync, or from pages that the kernel marks clean after a
    failed one although they never reached the disk. The caller syncs.

    Raises:
        OSError: the shard is as unproven as before.
    """
    for row in recovery.proven:
        for part in payload_parts(layout, row):
            _rewrite(fd, part.where)
        _rewrite(fd, layout.row(row.sequence))
    for row in recovery.voids:
        write_at(fd, row.encode(), layout.row(row.sequence).offset)
    for sequence in recovery.junk:
        write_at(fd, bytes(ROW_BYTES), layout.row(sequence).offset)


def _rewrite(fd: int, where: ByteRange) -> None:
    for offset, piece in read_pieces(fd, where):
        write_at(fd, piece, offset)
