"""What repair does with the index: which samples stay, and which rows become void."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from statetap_store.index_faults import damaged_rows, misplaced_rows
from statetap_store.index_row import IndexRow, Rows, is_repeated, key_of_damaged
from statetap_store.layout import token_bytes
from statetap_store.payload_faults import payload_faults
from statetap_store.recover import Recovery
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import ShardIndex, read_row
from statetap_store.shard_report import Fault

#: Numbers of rows, or positions among them.
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What is to be written, and what that means for the samples."""

    recovery: Recovery
    #: As in ``RepairReport``.
    mended: tuple[Fault, ...]
    lost: tuple[Fault, ...]


def plan_repair(
    shard: ShardFile,
    index: ShardIndex,
    on_progress: Callable[[int, int], None],
) -> RepairPlan:
    """Checks all that the index says, payloads included, and decides without writing.

    Args:
        shard: its header is right, and rows of which one bit was wrong are mended.
        index: all its rows.
        on_progress: called after each payload with the bytes checked and the bytes to check.
    """
    samples = index.samples
    faults = _payload_faults(shard, samples, on_progress)
    sound = _without(samples, faults)
    for position, fault in misplaced_rows(shard, samples[sound]):
        if fault.kind != "rows-gap":
            faults[int(sound[position])] = fault
    sound = _without(samples, faults)
    is_again = is_repeated(samples["key"][sound])
    kept = samples[sound[~is_again]]
    repeated = samples[sound[is_again]]

    by_row = {int(samples["sequence"][position]): fault for position, fault in faults.items()}
    mended: dict[int, Fault] = {}
    for row in map(IndexRow.of, repeated):
        message = f"index row {row.sequence} of {shard.path} had the key of an earlier one"
        mended[row.sequence] = Fault("key-repeated", row.key, f"{message} and is void now")
    for sequence in damaged_rows(shard, index):
        key = _damaged_key(shard, sequence)
        where = f"index row {sequence} of {shard.path}"
        if key is None and sequence in index.junk and not shard.header.is_sealed:
            message = f"{where}, behind all samples, was not empty and is now"
            mended[sequence] = Fault("row-corrupt", None, message)
        else:
            message = f"{where} is damaged beyond repair, sample {key or 'unknown'} is lost"
            by_row[sequence] = Fault("row-corrupt", key, message)
    stored = _stored([fault.key for fault in by_row.values() if fault.key is not None], kept)
    return RepairPlan(
        recovery=_recovery(shard, index, kept),
        mended=tuple(mended[sequence] for sequence in sorted(mended)),
        lost=tuple(by_row[number] for number in sorted(by_row) if by_row[number].key not in stored),
    )


def _payload_faults(
    shard: ShardFile,
    samples: Rows,
    on_progress: Callable[[int, int], None],
) -> dict[int, Fault]:
    """The first fault of each sample that has one, by its position."""
    sample_bytes = token_bytes(shard.header.spec)
    num_bytes = int(samples["num_tokens"].sum()) * sample_bytes
    num_checked = 0
    faults: dict[int, Fault] = {}
    for position, row in enumerate(map(IndexRow.of, samples)):
        # Whatever the keys of others are made of, a payload that is right is not given up.
        for fault in payload_faults(shard, row, has_digest_keys=False):
            faults.setdefault(position, fault)
        num_checked += row.num_tokens * sample_bytes
        on_progress(num_checked, num_bytes)
    return faults


def _without(samples: Rows, faults: dict[int, Fault]) -> _Numbers:
    """Positions of the samples that have no fault."""
    return np.setdiff1d(np.arange(len(samples)), np.fromiter(faults, np.int64, len(faults)))


def _stored(keys: list[str], kept: Rows) -> set[str]:
    """Those of some keys that a sample has that stays."""
    wanted = np.array(keys, kept["key"].dtype)
    return {key.decode() for key in wanted[np.isin(wanted, kept["key"])].tolist()}


def _damaged_key(shard: ShardFile, sequence: int) -> str | None:
    return key_of_damaged(read_row(shard.fd, shard.header.layout, sequence), sequence)


def _recovery(shard: ShardFile, index: ShardIndex, kept: Rows) -> Recovery:
    is_sealed = shard.header.is_sealed
    num_rows = shard.header.layout.capacity_samples if is_sealed else index.end
    is_late = kept["sequence"] >= index.num_durable
    voids = tuple(_voids(shard, index, kept, num_rows))
    token_ends = kept["token_offset"] + kept["num_tokens"]
    return Recovery(
        durable=kept[~is_late],
        proven=tuple(map(IndexRow.of, kept[is_late])),
        voids=voids,
        # A sealed shard has no room behind its rows.
        junk=() if is_sealed else index.junk,
        next_sequence=num_rows,
        next_token=max([int(token_ends.max(initial=0)), *(row.token_end for row in voids)]),
    )


def _voids(shard: ShardFile, index: ShardIndex, kept: Rows, num_rows: int) -> Iterator[IndexRow]:
    """Void rows to be written, for the rows between and behind those that stay.

    They claim the tokens up to the next sample. Behind the last sample tokens are free again.
    """
    capacity = shard.header.layout.capacity_tokens
    ends = (kept["token_offset"] + kept["num_tokens"]).astype(np.int64)
    first_rows = np.append(0, kept["sequence"].astype(np.int64) + 1)
    end_rows = np.append(kept["sequence"].astype(np.int64), num_rows)
    start_tokens = np.append(0, ends)
    end_tokens = np.append(kept["token_offset"].astype(np.int64), start_tokens[-1])
    for number in np.flatnonzero(first_rows < end_rows).tolist():
        rows = range(int(first_rows[number]), int(end_rows[number]))
        start, end = int(start_tokens[number]), int(end_tokens[number])
        standing = {row.sequence: row for row in map(IndexRow.of, _rows_in(index, rows))}
        # Void rows of earlier days may have divided the tokens otherwise.
        last_end = range(start, capacity + 1) if rows.stop == num_rows else range(end, end + 1)
        if not _are_in_order(standing, rows, start, last_end):
            yield from _stretch(shard, index, rows, standing, start, end)


def _rows_in(index: ShardIndex, sequences: range) -> Rows:
    first, end = np.searchsorted(index.rows["sequence"], [sequences.start, sequences.stop])
    return index.rows[first:end]


def _are_in_order(
    standing: dict[int, IndexRow], sequences: range, start: int, last_end: range
) -> bool:
    """Whether all rows are void already, and claim the tokens one after another."""
    for sequence in sequences:
        row = standing.get(sequence)
        if row is None or row.is_sample or row.token_offset != start:
            return False
        start = row.token_end
    return start in last_end


def _stretch(
    shard: ShardFile,
    index: ShardIndex,
    sequences: range,
    standing: dict[int, IndexRow],
    start: int,
    end: int,
) -> Iterator[IndexRow]:
    """Void rows for adjoining ``sequences``, of which the first one claims all tokens."""
    for sequence in sequences:
        row = standing.get(sequence)
        key = row.key if row is not None else _damaged_key(shard, sequence) or ""
        yield IndexRow.void(key, sequence, start, end - start, min(sequence, index.num_durable))
        start = end
