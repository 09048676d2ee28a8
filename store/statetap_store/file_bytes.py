"""Reading and writing byte ranges of an open file, in pieces that fit memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import xxhash

from statetap_store.layout import ByteRange

#: Bytes handled at a time where a range may be large. Small enough to stay in a core's cache.
PIECE_BYTES: Final = 1024 * 1024


def read_range(fd: int, where: ByteRange) -> bytes:
    """The range's bytes; fewer where the file ends before it does."""
    data = bytearray(where.num_bytes)
    return bytes(data[: read_into(fd, memoryview(data), where.offset)])


def read_into(fd: int, buffer: memoryview, offset: int) -> int:
    """Fills a buffer of bytes; returns how many bytes the file had."""
    done = 0
    while done < len(buffer):
        num_read = os.preadv(fd, [buffer[done:]], offset + done)
        if num_read == 0:
            break
        done += num_read
    return done


def write_at(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Writes all of ``data``. Raises OSError."""
    view = memoryview(data)
    while view:
        num_written = os.pwrite(fd, view, offset)
        view = view[num_written:]
        offset += num_written


def start_writing_out(fd: int, where: ByteRange) -> None:
    """Has the kernel begin to write a range to the disk, so that a sync has less to wait for.

    That it may also drop what is written is meant for memory, but dirty pages are written out
    first, and no other call does that without waiting. Where it does nothing, the sync does it all.
    """
    os.posix_fadvise(fd, where.offset, where.num_bytes, os.POSIX_FADV_DONTNEED)


def read_pieces(
    fd: int, where: ByteRange, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[int, memoryview]]:
    """The range's bytes in pieces of at most ``piece_bytes``, each with its offset in the file.

    Ends early where the file does, if need be with a piece that is cut. All pieces share one
    buffer, since fresh memory costs more than reading into it: a piece is gone when the next
    one comes.
    """
    buffer = memoryview(bytearray(min(piece_bytes, where.num_bytes)))
    for offset in range(where.offset, where.end, piece_bytes):
        piece = buffer[: where.end - offset]
        num_read = read_into(fd, piece, offset)
        yield offset, piece[:num_read]
        if num_read < len(piece):
            return


def hash_range(fd: int, where: ByteRange) -> int:
    """xxh3-64 of the range's bytes, or of those that the file still has."""
    digest = xxhash.xxh3_64()
    for _, piece in read_pieces(fd, where):
        digest.update(piece)
    return digest.intdigest()


def make_folders(folder: Path, num_levels: int) -> None:
    """Makes a folder, and the last ``num_levels`` of its path, and makes their names durable.

    Also the names of folders that are there: whoever made one may have been killed before it was
    synced, and a power loss would take it with all that was acknowledged in it.

    Raises:
        FileNotFoundError, NotADirectoryError: what these are to be in is not there.
        OSError: the disk fails.
    """
    for path in reversed((folder, *folder.parents[: num_levels - 1])):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
