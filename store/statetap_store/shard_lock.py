"""The right to append to a shard, held by at most one process."""

import fcntl
import os
from pathlib import Path

from statetap_contract import StopError

from statetap_store.disk_errors import stop_for


class ShardLock:
    """An exclusive lock on ``<shard>.lock``, for as long as the object is open.

    The lock file stays: removing it would let two processes lock two different files of the same
    name.

    Raises:
        StopError: kind ``shard-locked``, another writer has it; ``disk-full``, ``not-writable`` or
            ``shard-broken``, there can be no lock file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        name = path.with_name(path.name + ".lock")
        try:
            self._fd = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise stop_for(error, name, "make a lock") from error
        try:
            self._lock(self._fd, fcntl.LOCK_EX)
        except BaseException:
            self.close()
            raise

    def share(self, fd: int) -> None:
        """Locks the open shard itself, shared.

        HDF5 locks files that it opens: this keeps out whoever would write through HDF5, mode
        ``w`` included, and lets readers in.
        """
        self._lock(fd, fcntl.LOCK_SH)

    def close(self) -> None:
        os.close(self._fd)

    def _lock(self, fd: int, kind: int) -> None:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StopError(
                "shard-locked",
                f"{self._path} is open for writing in another process: stop that one, or give "
                "this worker a name of its own",
            ) from error
