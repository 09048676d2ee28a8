"""Verification of a shard: every byte that belongs to a sample, or the index alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import xxhash
from statetap_contract import CaptureSpec, CheckError

from statetap_store.bad_rows import BadRow, bad_rows
from statetap_store.dtypes import storage_dtype
from statetap_store.file_bytes import PIECE_BYTES, hash_range, read_pieces, read_range
from statetap_store.index_row import IndexRow, key_of_damaged
from statetap_store.layout import token_bytes
from statetap_store.payload import fits, payload_parts
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import ShardIndex
from statetap_store.shard_report import Fault, ShardReport


def verify_shard(
    path: Path, *, quick: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> ShardReport:
    """Checks a shard and reports all that is wrong with it.

    The header is compared with its copies, attributes and shapes with the capture spec, and
    every index row with its checksum, its number and its neighbours. Unless ``quick``, every
    payload is compared with its checksums, and its states are searched for values that are not
    finite and for slots of nothing but zeros.

    The shard may be growing: what is appended after the start is not looked at.

    Args:
        path: the shard.
        quick: leave the payloads alone.
        on_progress: called after each payload with the bytes checked and the bytes to check.

    Raises:
        MissingError: kind ``shard-missing`` or ``shard-unreachable``. A file that is no shard, or
            a shard of a newer format version, is reported as a fault like any other.
    """
    try:
        shard = ShardFile.open(path)
    except CheckError as error:
        return ShardReport(path, 0, 0, 0, (Fault(error.kind, None, error.message),))
    with shard:
        try:
            index = shard.load_index()
        except CheckError as error:
            return ShardReport(path, 0, 0, 0, (Fault(error.kind, None, error.message),))
        faults = [*_header_faults(shard), *_index_faults(shard, index)]
        samples = [IndexRow.of(row) for row in index.samples]
        num_tokens = sum(row.num_tokens for row in samples)
        num_bytes = num_tokens * token_bytes(shard.header.spec)
        if not quick:
            num_checked = 0
            for row in samples:
                faults += _payload_faults(shard, row)
                num_checked += row.num_tokens * token_bytes(shard.header.spec)
                if on_progress is not None:
                    on_progress(num_checked, num_bytes)
        return ShardReport(path, len(samples), num_tokens, num_bytes, tuple(faults))


def _header_faults(shard: ShardFile) -> Iterator[Fault]:
    path, copies = shard.path, shard.copies
    is_cut = not shard.header.is_sealed or not shard.has_slack
    if copies.proven is None:
        yield Fault("header-unproven", None, f"{path} has no intact copy of its header")
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
            f"{path} has a damaged header: run 'statetap repair {path}', an intact copy is in it",
        )
    elif copies.damaged_slots:
        slot = copies.damaged_slots[0]
        yield Fault(
            "backup-damaged",
            None,
            f"{path} has a damaged copy of its header in slot {slot}: run 'statetap repair {path}'",
        )
    try:
        shard.check_length()
    except CheckError as error:
        yield Fault(error.kind, None, error.message)


def _index_faults(shard: ShardFile, index: ShardIndex) -> Iterator[Fault]:
    layout = shard.header.layout
    missing = range(index.end, layout.capacity_samples) if shard.header.is_sealed else ()
    for sequence in sorted({*index.damaged, *index.junk, *missing}):
        data = read_range(shard.fd, layout.row(sequence))
        key = key_of_damaged(data, sequence)
        yield Fault(
            "row-corrupt",
            key,
            f"index row {sequence} of {shard.path} is damaged, sample {key or 'unknown'} is lost",
        )
    keys: set[str] = set()
    next_sequence = next_token = 0
    for row in map(IndexRow.of, index.rows):
        yield from _placement_faults(shard, row, next_sequence, next_token)
        next_sequence = row.sequence + 1
        next_token = max(next_token, row.token_end)
        if not row.is_sample:
            continue
        if row.key in keys:
            yield Fault(
                "key-repeated", row.key, f"sample {row.key} is in {shard.path} more than once"
            )
        keys.add(row.key)


def _placement_faults(
    shard: ShardFile, row: IndexRow, next_sequence: int, next_token: int
) -> Iterator[Fault]:
    where = f"index row {row.sequence} of {shard.path}"
    if row.token_offset < next_token:
        yield Fault("rows-overlap", row.key, f"{where} claims tokens of an earlier row")
    elif row.token_offset > next_token and row.sequence == next_sequence:
        yield Fault("rows-gap", row.key, f"{where} leaves tokens out that no row claims")
    if not fits(shard.header.layout, row):
        yield Fault("row-outside", row.key, f"{where} claims tokens outside the shard")


def _payload_faults(shard: ShardFile, row: IndexRow) -> Iterator[Fault]:
    sample = f"sample {row.key} in {shard.path}"
    if not fits(shard.header.layout, row):
        return
    ids, mask, states = payload_parts(shard.header.layout, row)
    try:
        for part in (ids, mask):
            if hash_range(shard.fd, part.where) != part.expected:
                yield Fault(
                    "payload-corrupt", row.key, f"{sample} has {part.name} that fail their checksum"
                )
        digest, found = xxhash.xxh3_64(), _BadSlots(shard.header.spec)
        row_bytes = shard.header.spec.row_bytes
        whole_rows = max(1, PIECE_BYTES // row_bytes) * row_bytes
        for _, piece in read_pieces(shard.fd, states.where, whole_rows):
            digest.update(piece)
            found.add(piece[: len(piece) - len(piece) % row_bytes])
    except OSError as error:
        yield Fault("payload-unreadable", row.key, f"{sample} cannot be read ({error.strerror})")
        return
    if digest.intdigest() != states.expected:
        yield Fault("payload-corrupt", row.key, f"{sample} has states that fail their checksum")
        return
    for bad, count in found.summary():
        rows = f", as in {count - 1} other rows" if count > 1 else ""
        yield Fault(f"states-{bad.kind}", row.key, f"{sample}: {bad}{rows}")


class _BadSlots:
    """Bad rows of one sample, which comes in pieces: the first of each kind and slot."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._num_rows = 0
        self._found: dict[tuple[str, str], tuple[BadRow, int]] = {}

    def add(self, data: memoryview) -> None:
        """Takes the next whole rows."""
        states = np.frombuffer(data, storage_dtype(self._spec.dtype))
        rows = states.reshape(-1, self._spec.row_width)
        for bad in bad_rows(rows, self._spec):
            here = replace(bad, row=self._num_rows + bad.row)
            first, count = self._found.get((bad.kind, bad.slot), (here, 0))
            self._found[bad.kind, bad.slot] = first, count + 1
        self._num_rows += len(rows)

    def summary(self) -> Iterator[tuple[BadRow, int]]:
        """The first bad row of each kind and slot, and how many there are."""
        yield from self._found.values()
