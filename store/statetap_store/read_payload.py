"""Reading one sample's payload from an open shard into memory that is there."""

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import CheckError

from statetap_store.file_bytes import PIECE_BYTES, read_into
from statetap_store.layout import ByteRange, ShardLayout
from statetap_store.sample import Sample, SampleEntry


def check_place(layout: ShardLayout, entry: SampleEntry) -> None:
    """Raises CheckError, kind ``payload-corrupt``, for a sample that cannot be where it should."""
    if entry.token_offset + entry.num_tokens > layout.capacity_tokens:
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
    read_prompt(fd, layout, entry, sample.token_ids, sample.loss_mask, check=check)
    where = layout.states(entry.token_offset, entry.num_tokens)
    _fill(fd, entry, "states", where, sample.states, entry.states_xxh3 if check else None)


def read_prompt(
    fd: int,
    layout: ShardLayout,
    entry: SampleEntry,
    token_ids: npt.NDArray[np.int32],
    loss_mask: npt.NDArray[np.uint8],
    *,
    check: bool,
) -> None:
    """Fills token ids and loss mask, as ``read_payload`` does all three."""
    tokens = entry.token_offset, entry.num_tokens
    expected = (entry.ids_xxh3, entry.mask_xxh3) if check else (None, None)
    _fill(fd, entry, "token ids", layout.token_ids(*tokens), token_ids, expected[0])
    _fill(fd, entry, "loss mask", layout.loss_mask(*tokens), loss_mask, expected[1])


def _fill(
    fd: int,
    entry: SampleEntry,
    name: str,
    where: ByteRange,
    array: npt.NDArray[np.generic],
    expected: int | None,
) -> None:
    buffer = array.reshape(-1).view(np.uint8).data
    digest = None
    try:
        if expected is None:
            num_read = read_into(fd, buffer, where.offset)
        else:
            num_read, digest = _read_hashed(fd, buffer, where.offset)
    except OSError as error:
        raise _corrupt(entry, f"cannot be read ({error.strerror})") from error
    if num_read != where.num_bytes:
        raise _corrupt(entry, f"has {name} that the file does not hold")
    if digest != expected:
        raise _corrupt(entry, f"has {name} that fail their checksum")


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
