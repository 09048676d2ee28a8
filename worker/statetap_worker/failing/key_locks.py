"""KeyLocks: which process is at a sample, among all that share a folder of runs.

Whoever asks the server for a sample holds the lock of its key from before it looks into the shards
until the sample is durable. Another one that is given the same prompt waits, looks after that, and
finds it. So no folder holds a sample twice, whatever Redis forgets, and whoever is killed: the
kernel frees the locks of a process that ends.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from statetap_contract import StopError

#: Digits of a key that choose the byte to lock, so that its offset fits into 63 bits. Should two
#: keys ever have the same one, they wait for each other.
_OFFSET_DIGITS: Final = 15


class KeyLocks:
    """The locks of one process, which is at one sample at a time.

    One byte of a file stands for each key; the file stays empty. A process must open it once only:
    closing any descriptor of the file gives its locks up.

    Args:
        path: the file, the same for all processes of the folder of runs.

    Raises:
        StopError: kind ``note-unwritable``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(exist_ok=True)
            self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StopError("note-unwritable", f"cannot write {path}: {error.strerror}") from error

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Waits until no other process has this key; it is this one's while the context lasts.

        Args:
            key: sample key.

        Raises:
            StopError: kind ``no-locks``.
        """
        offset = int(key[:_OFFSET_DIGITS], 16)
        try:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, offset)
            except OSError as error:
                raise StopError(
                    "no-locks",
                    f"{self._path} cannot be locked ({error.strerror}): keep runs on a file system "
                    "with locks; Lustre has them with the mount option flock",
                ) from error
            yield
        finally:
            # Also where the wait was interrupted, perhaps just after it had ended.
            with suppress(OSError):
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, offset)

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._fd)
