"""What can be wrong with a shard before any payload is read: its header, copies and index."""

from collections.abc import Iterator
from typing import Final

from statetap_contract import CheckError

from statetap_store.index_row import Rows, is_repeated, key_of_damaged, keys_of, readable_key
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import ShardIndex, read_row
from statetap_store.shard_report import Fault

_PLACEMENTS: Final = {
    "row-outside": "claims tokens outside the shard",
    "rows-overlap": "claims tokens of an earlier row",
    "rows-gap": "leaves tokens out that no row claims",
}

#: A million rows are not turned into Python's integers all at once.
_ROWS_AT_A_TIME: Final = 1 << 16


def header_faults(shard: ShardFile) -> Iterator[Fault]:
    """Where the header, its copies and the file's length disagree."""
    path, copies = shard.path, shard.copies
    is_cut = not shard.header.is_sealed or not shard.has_slack
    error = copies.disk_error
    reason = f" ({error.strerror})" if error is not None else ""
    if copies.proven is None:
        yield Fault(
            "header-unproven",
            None,
            f"{path} has no intact copy of its header{reason}: run 'statetap repair {path}'",
        )
    elif copies.is_seal_unfinished or not is_cut:
        yield Fault(
            "seal-unfinished",
            None,
            f"{path} was interrupted while it was sealed: run 'statetap seal {path}'",
        )
    elif not copies.is_intact:
        yield Fault(
            "header-damaged",
            None,
            f"{path} has a damaged header{reason}: run 'statetap repair {path}', an intact copy is "
            "in it",
        )
    elif copies.damaged_slots:
        slot = copies.damaged_slots[0]
        yield Fault(
            "backup-damaged",
            None,
            f"{path} has a damaged copy of its header in slot {slot}{reason}: run 'statetap repair "
            f"{path}'",
        )
    try:
        shard.check_length()
    except CheckError as error:
        yield Fault(error.kind, None, error.message)


def index_faults(shard: ShardFile, index: ShardIndex) -> Iterator[Fault]:
    """Damaged rows, then rows whose tokens are not where they belong, then repeated keys."""
    for sequence in damaged_rows(shard, index):
        data = read_row(shard.fd, shard.header.layout, sequence)
        trouble = "is damaged" if data else "cannot be read"
        key = key_of_damaged(data, sequence)
        loss = f", sample {key} is lost" if key is not None else ""
        message = f"index row {sequence} of {shard.path} {trouble}{loss}"
        yield Fault("row-corrupt", key, message)
    for _, fault in misplaced_rows(shard, index.rows):
        yield fault
    samples = index.samples
    for key in keys_of(samples[is_repeated(samples["key"])]):
        yield Fault("key-repeated", key, f"sample {key} is in {shard.path} more than once")


def damaged_rows(shard: ShardFile, index: ShardIndex) -> list[int]:
    """Numbers of all rows that should be right and are not, ascending."""
    missing = range(index.end, shard.header.layout.capacity_samples)
    if not shard.header.is_sealed:
        missing = range(0)
    return sorted({*index.damaged, *index.junk, *missing})


def misplaced_rows(shard: ShardFile, rows: Rows) -> Iterator[tuple[int, Fault]]:
    """Each of ``rows`` whose tokens do not start where those before it end, by its position.

    A row that claims what it cannot have does not count for those behind it.
    """
    capacity = shard.header.layout.capacity_tokens
    next_sequence = next_token = 0
    for position, (sequence, start, num_tokens) in enumerate(_places(rows)):
        kind = None
        if start + num_tokens > capacity:
            kind = "row-outside"
        elif start < next_token:
            kind = "rows-overlap"
        else:
            if start > next_token and sequence == next_sequence:
                kind = "rows-gap"
            next_sequence, next_token = sequence + 1, start + num_tokens
        if kind is not None:
            message = f"index row {sequence} of {shard.path} {_PLACEMENTS[kind]}"
            yield position, Fault(kind, readable_key(rows["key"][position]), message)


def _places(rows: Rows) -> Iterator[tuple[int, int, int]]:
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        part = rows[first : first + _ROWS_AT_A_TIME]
        columns = (part[name].tolist() for name in ("sequence", "token_offset", "num_tokens"))
        yield from zip(*columns, strict=True)
