"""Files of an export: each is there whole and durable, or not at all, and hashed on its way."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash
from statetap_store.file_bytes import PIECE_BYTES, start_writing_out, sync_folder, write_at
from statetap_store.layout import ByteRange

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class NewFile:
    """A file under a hidden name until it is published; libraries can write to it.

    The hidden name is always the same, so that what a killed export left there is written over.

    Args:
        path: the name that it will have. Its folder is there.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = temporary_name(path)
        self._temporary.unlink(missing_ok=True)
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        self._fd = os.open(self._temporary, flags, 0o644)
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0
        #: What the disk failed with; libraries make other errors of it.
        self.failure: OSError | None = None

    def write(self, data: "ReadableBuffer") -> int:
        """Appends all of ``data``; returns its length. Raises OSError."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            # While it is in the core's cache.
            self._digest.update(piece)
            try:
                write_at(self._fd, piece, self._num_bytes)
            except OSError as error:
                self.failure = error
                raise
            self._num_bytes += len(piece)
        return len(view)

    @property
    def closed(self) -> bool:
        """Whether it can no longer be written to."""
        return self._fd < 0

    def flush(self) -> None:
        """Nothing is held back; writers of libraries call this all the same."""

    def end(self) -> str:
        """Tells the kernel to begin with the disk; returns the xxh128 of the content."""
        start_writing_out(self._fd, ByteRange(0, self._num_bytes))
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Waits until the content is on the disk. Raises OSError."""
        os.fsync(self._fd)

    def take_name(self) -> None:
        """Replaces what has the name. Raises OSError."""
        os.close(self._fd)
        self._fd = -1
        self._temporary.replace(self.path)

    def discard(self) -> None:
        """Removes what has not taken its name."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._temporary.unlink(missing_ok=True)


@contextmanager
def disk_errors_of(file: NewFile) -> Iterator[None]:
    """Has the disk's own error raised where a library that writes to ``file`` raises another."""
    try:
        yield
    except Exception as error:
        if file.failure is not None and error is not file.failure:
            raise file.failure from error
        raise


def publish(files: Iterable[NewFile]) -> None:
    """Makes the content of all files durable, then their names. Raises OSError."""
    files = list(files)
    for file in files:
        file.sync()
    for file in files:
        file.take_name()
    for folder in dict.fromkeys(file.path.parent for file in files):
        sync_folder(folder)


def temporary_name(path: Path) -> Path:
    """The hidden name of a file that is not published."""
    return path.with_name(f".{path.name}.new")


def hash_file(path: Path) -> str | None:
    """xxh128 of a file's content; None where none can be read."""
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb", buffering=0) as stream:
            while piece := stream.read(PIECE_BYTES):
                digest.update(piece)
    except OSError:
        return None
    return digest.hexdigest()
