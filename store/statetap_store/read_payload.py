"""Reading one sample's payload from an open shard into memory that is there."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import CheckError

from statetap_store.file_bytes import PIECE_BYTES, read_into
from statetap_store.layout import ShardLayout
from statetap_store.payload import PayloadPart, fits, payload_parts
from statetap_store.sample import Sample, SampleEntry


def check_place(layout: ShardLayout, entry: SampleEntry) -> None:
    """Raises CheckError, kind ``payload-corrupt``, for a sample that cannot be where it should."""
    if not fits(layout, entry):
        raise _corrupt(entry, "lies outside the shard")


def read_payload(
    fd: int, layout: ShardLayout, entry: SampleEntry, sample: Sample, *, check: bool
) -> None:
    """Fills the arrays of ``sample``.

    Args:
        fd: the entry's shard.
        layout: of this shard.
        entry: what to read; ``check_place`` had nothing against it.
        sample: arrays for as many tokens as the entry has.
        check: whether to compute the checksums.

    Raises:
        CheckError: kind ``payload-corrupt``: a checksum is wrong, or bytes are missing or
            unreadable.
    """
    read_tokens(fd, layout, entry, sample.token_ids, sample.loss_mask, check=check)
    *_, states = payload_parts(layout, entry)
    _fill(fd, entry, states, sample.states, check=check)


def read_tokens(
    fd: int,
    layout: ShardLayout,
    entry: SampleEntry,
    token_ids: npt.NDArray[np.int32],
    loss_mask: npt.NDArray[np.uint8],
    *,
    check: bool,
) -> None:
    """Fills two arrays for as many tokens as the entry has; else as ``read_payload``."""
    ids, mask, _ = payload_parts(layout, entry)
    _fill(fd, entry, ids, token_ids, check=check)
    _fill(fd, entry, mask, loss_mask, check=check)


def read_state_blocks(
    fd: int,
    layout: ShardLayout,
    entry: SampleEntry,
    buffer: npt.NDArray[np.generic],
) -> Iterator[npt.NDArray[np.generic]]:
    """The states of a sample, some rows at a time, all in one buffer: [rows, row_width] each.

    The checksum is proven after the last rows: what was made of the others is worth nothing where
    that fails.

    Args:
        fd: the entry's shard.
        layout: of this shard.
        entry: what to read; ``check_place`` had nothing against it.
        buffer: [most rows, row_width] in the storage dtype.

    Raises:
        CheckError: as ``read_payload``.
    """
    *_, states = payload_parts(layout, entry)
    digest = xxhash.xxh3_64()
    for start in range(0, entry.num_tokens, len(buffer)):
        rows = buffer[: entry.num_tokens - start]
        data = rows.reshape(-1).view(np.uint8).data
        try:
            num_read = read_into(fd, data, states.where.offset + start * layout.row_bytes)
        except OSError as error:
            raise _corrupt(entry, f"cannot be read ({error.strerror})") from error
        if num_read != len(data):
            raise _corrupt(entry, f"has {states.name} that the file does not hold")
        digest.update(data)
        yield rows
    if digest.intdigest() != states.expected:
        raise _corrupt(entry, f"has {states.name} that fail their checksum")


def _fill(
    fd: int, entry: SampleEntry, part: PayloadPart, array: npt.NDArray[np.generic], *, check: bool
) -> None:
    buffer = array.reshape(-1).view(np.uint8).data
    digest = part.expected
    try:
        if check:
            num_read, digest = _read_hashed(fd, buffer, part.where.offset)
        else:
            num_read = read_into(fd, buffer, part.where.offset)
    except OSError as error:
        raise _corrupt(entry, f"cannot be read ({error.strerror})") from error
    if num_read != part.where.num_bytes:
        raise _corrupt(entry, f"has {part.name} that the file does not hold")
    if digest != part.expected:
        raise _corrupt(entry, f"has {part.name} that fail their checksum")


def _read_hashed(fd: int, buffer: memoryview, offset: int) -> tuple[int, int]:
    """Fills a buffer; how many bytes the file had, and the buffer's xxh3-64.

    Each piece is hashed while it is in the core's cache.
    """
    digest = xxhash.xxh3_64()
    num_read = 0
    for start in range(0, len(buffer), PIECE_BYTES):
        piece = buffer[start : start + PIECE_BYTES]
        num_read += read_into(fd, piece, offset + start)
        digest.update(piece)
    return num_read, digest.intdigest()


def _corrupt(entry: SampleEntry, trouble: str) -> CheckError:
    return CheckError(
        "payload-corrupt",
        f"sample {entry.key} in {entry.path} {trouble}: run 'statetap verify {entry.path}'",
    )
