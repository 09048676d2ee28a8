"""Verification of a shard: every byte that belongs to a sample, or the index alone."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from statetap_contract import CheckError, MissingError

from statetap_store.file_bytes import read_range
from statetap_store.index_faults import header_faults, index_faults
from statetap_store.index_row import IndexRow, Rows, samples_of
from statetap_store.layout import token_bytes
from statetap_store.payload_faults import payload_faults
from statetap_store.shard_file import ShardFile, unreadable
from statetap_store.shard_index import read_rows
from statetap_store.shard_lock import is_locked
from statetap_store.shard_report import Fault, ShardReport

#: Payload and rows of one piece of work: large enough to be worth handing to a process, small
#: enough that the last ones keep all processes busy and that a bar moves.
SHARE_BYTES: Final = 256 * 1024 * 1024
_SHARE_ROWS: Final = 1 << 16

#: How often a shard that looks wrong while its writer is at work is looked at again, and the
#: seconds between.
_NUM_LOOKS: Final = 5
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class PayloadPiece:
    """Some rows of a shard, whose payloads are to be checked."""

    path: Path
    #: Number of the first row, and one past the last.
    first: int
    end: int
    #: Samples in them.
    num_samples: int
    #: Bytes of states, ids and masks.
    num_bytes: int
    #: As in ``verify_shard``.
    has_digest_keys: bool


@dataclass(frozen=True, slots=True)
class ShardLook:
    """What header and index say."""

    #: Without faults of payloads.
    report: ShardReport
    #: All samples, cut for ``check_piece``.
    pieces: tuple[PayloadPiece, ...]


def verify_shard(
    path: Path,
    *,
    quick: bool = False,
    has_digest_keys: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
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
        has_digest_keys: keys are sample keys as the contract defines them. Each is computed anew
            from the capture spec and the sample's ids and mask.
        on_progress: called after each payload with the bytes checked and the bytes to check.

    Raises:
        MissingError: kind ``shard-missing`` or ``shard-unreachable``. A file that is no shard, or
            a shard of a newer format version, is reported as a fault like any other.
    """
    look = look_at(path, SHARE_BYTES, has_digest_keys=has_digest_keys)
    faults = list(look.report.faults)
    num_checked = 0
    for piece in () if quick else look.pieces:
        for num_bytes, found in _check_samples(piece):
            faults += found
            num_checked += num_bytes
            if on_progress is not None:
                on_progress(num_checked, look.report.num_bytes)
    return replace(look.report, faults=tuple(faults))


def look_at(path: Path, share_bytes: int, *, has_digest_keys: bool) -> ShardLook:
    """Checks header and index.

    What is wrong may be right in a moment: a writer that seals replaces the header and its
    copies one after another. So it must still be wrong after the writer has ended, or after a
    while. A seal under way is no fault.

    Args:
        path: the shard.
        share_bytes: payload of a piece, unless a sample is larger.
        has_digest_keys: as for ``verify_shard``.

    Raises:
        MissingError: as ``verify_shard``.
    """
    look = _look_at(path, share_bytes, has_digest_keys=has_digest_keys)
    for _ in range(_NUM_LOOKS):
        if look.report.is_intact:
            return look
        has_writer = is_locked(path)
        if has_writer:
            time.sleep(_PAUSE_S)
        look = _look_at(path, share_bytes, has_digest_keys=has_digest_keys)
        if not has_writer:
            return look
    lasting = tuple(fault for fault in look.report.faults if fault.kind != "seal-unfinished")
    return replace(look, report=replace(look.report, faults=lasting))


def _look_at(path: Path, share_bytes: int, *, has_digest_keys: bool) -> ShardLook:
    try:
        with ShardFile.open(path) as shard:
            index = shard.load_index()
            faults = (*header_faults(shard), *index_faults(shard, index))
            pieces = tuple(
                _pieces(shard, index.samples, share_bytes, has_digest_keys=has_digest_keys)
            )
            num_tokens = int(index.samples["num_tokens"].sum())
            num_bytes = num_tokens * token_bytes(shard.header.spec)
    except CheckError as error:
        return ShardLook(ShardReport(path, 0, 0, 0, (_fault_of(error),)), ())
    except OSError as error:
        return ShardLook(ShardReport(path, 0, 0, 0, (_fault_of(unreadable(path, error)),)), ())
    return ShardLook(ShardReport(path, len(index.samples), num_tokens, num_bytes, faults), pieces)


def _pieces(
    shard: ShardFile, samples: Rows, share_bytes: int, *, has_digest_keys: bool
) -> Iterator[PayloadPiece]:
    if not len(samples):
        return
    sizes = samples["num_tokens"].astype(np.int64) * token_bytes(shard.header.spec)
    before = np.cumsum(sizes) - sizes
    piece_numbers = before // share_bytes + np.arange(len(samples)) // _SHARE_ROWS
    starts = [0, *(np.flatnonzero(np.diff(piece_numbers)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(samples)], strict=True):
        yield PayloadPiece(
            path=shard.path,
            first=int(samples["sequence"][start]),
            end=int(samples["sequence"][end - 1]) + 1,
            num_samples=end - start,
            num_bytes=int(sizes[start:end].sum()),
            has_digest_keys=has_digest_keys,
        )


def check_piece(piece: PayloadPiece) -> list[Fault]:
    """Checks all payloads of a piece, in the order of their rows.

    A shard that went away since it was looked at has that fault.
    """
    return [fault for _, faults in _check_samples(piece) for fault in faults]


def _check_samples(piece: PayloadPiece) -> Iterator[tuple[int, tuple[Fault, ...]]]:
    """Bytes and faults of each sample.

    Rows are read anew: what was given up since it was looked at is no sample any more.
    """
    try:
        with ShardFile.open(piece.path) as shard:
            sample_bytes = token_bytes(shard.header.spec)
            numbers = range(piece.first, piece.end)
            rows, disk_error = read_rows(shard.fd, shard.header.layout, numbers)
            samples = samples_of(rows)
            if disk_error is not None and len(samples) < piece.num_samples:
                # They could be read a moment ago.
                yield 0, (_fault_of(unreadable(piece.path, disk_error)),)
            for row in map(IndexRow.of, samples):
                faults = tuple(payload_faults(shard, row, has_digest_keys=piece.has_digest_keys))
                if faults and not _still_stands(shard, row):
                    # It was given up meanwhile, and others may use its tokens.
                    faults = ()
                yield row.num_tokens * sample_bytes, faults
    except (CheckError, MissingError) as error:
        yield 0, (_fault_of(error),)
    except OSError as error:
        yield 0, (_fault_of(unreadable(piece.path, error)),)


def _fault_of(error: CheckError | MissingError) -> Fault:
    return Fault(error.kind, None, error.message)


def _still_stands(shard: ShardFile, row: IndexRow) -> bool:
    with suppress(OSError):
        data = read_range(shard.fd, shard.header.layout.row(row.sequence))
        return IndexRow.decode(data, row.sequence) == row
    return True
