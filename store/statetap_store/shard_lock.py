"""The right to append to a shard, held by at most one process."""

import errno
import fcntl
import os
import struct
import time
from pathlib import Path
from typing import Final

from statetap_contract import StopError

from statetap_store.disk_errors import stop_for

#: How often a lock is tried for, and the seconds in between: ``is_locked`` has it for a moment.
_NUM_TRIES: Final = 3
_PAUSE_S: Final = 0.02

#: ``struct flock``: an exclusive lock on a whole file, owned by the open file.
_WHOLE_FILE: Final = struct.pack("@hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)

#: What the system says when somebody else has a lock.
_TAKEN: Final = frozenset({errno.EAGAIN, errno.EACCES})


class ShardLock:
    """An exclusive lock on ``<shard>.lock``, for as long as the object is open.

    The lock file lies beside the shard itself, not beside links to it. It stays, unless it is
    discarded. Whoever gets the lock makes sure that the name still is this file's: two processes
    never hold two different files of one name.

    Raises:
        StopError: kind ``shard-locked``, another writer has it; ``disk-full``, ``not-writable`` or
            ``shard-broken``, there can be no lock file; ``no-locks``, the file system has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = _lock_name(path)
        while True:
            try:
                self._fd = os.open(self._name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            except OSError as error:
                raise stop_for(error, self._name, "make a lock") from error
            try:
                self._lock(self._fd, fcntl.LOCK_EX)
                if self._has_name():
                    return
            except BaseException:
                self.close()
                raise
            # It was discarded after it was opened here.
            self.close()

    def hold(self, fd: int) -> None:
        """Locks the shard itself, which is open for writing, as long as ``fd`` is open.

        Shared against HDF5, which locks files that it opens: this keeps out whoever would write
        through HDF5, mode ``w`` included, and lets readers in. Exclusively against other writers
        that came by a hard link, and so by another lock file.

        Raises:
            StopError: kind ``shard-locked`` or ``no-locks``.
        """
        self._lock(fd, fcntl.LOCK_SH)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except OSError as error:
            # Where there are no such locks, the lock file alone must do.
            if error.errno in _TAKEN:
                raise self._taken() from error

    def close(self) -> None:
        os.close(self._fd)

    def discard(self) -> None:
        """Removes the lock file too, where there is no shard to be appended to."""
        try:
            self._name.unlink(missing_ok=True)
        finally:
            self.close()

    def _has_name(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._name.stat())
        except FileNotFoundError:
            return False

    def _lock(self, fd: int, kind: int) -> None:
        for _ in range(_NUM_TRIES):
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_PAUSE_S)
            except OSError as error:
                raise self._unsupported(error) from error
            else:
                return
        raise self._taken()

    def _taken(self) -> StopError:
        return StopError(
            "shard-locked",
            f"{self._path} is open for writing in another process: stop that one, or give this "
            "worker a name of its own",
        )

    def _unsupported(self, error: OSError) -> StopError:
        return StopError(
            "no-locks",
            f"{self._path} cannot be locked ({error.strerror}): keep shards on a file system with "
            "locks; Lustre has them with the mount option flock",
        )


def is_locked(path: Path) -> bool:
    """Whether a writer has the shard, as far as this process may know.

    The lock is taken for a moment, shared, to find out.
    """
    try:
        fd = os.open(_lock_name(path), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        # Where there are no locks there are no writers.
        return error.errno in _TAKEN
    finally:
        os.close(fd)
    return False


def _lock_name(path: Path) -> Path:
    shard = path.resolve()
    return shard.with_name(shard.name + ".lock")
