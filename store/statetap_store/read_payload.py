"""Reading one sample's payload from an open shard into memory that is there."""

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
    ids, mask, states = payload_parts(layout, entry)
    _fill(fd, entry, ids, sample.token_ids, check=check)
    _fill(fd, entry, mask, sample.loss_mask, check=check)
    _fill(fd, entry, states, sample.states, check=check)


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
