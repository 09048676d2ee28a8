"""A worker's name belongs to one live worker of a folder of runs: files and hashes are named so."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statetap_contract import MissingError

#: Seconds for the end of children whose parent was killed.
_PREDECESSOR_S: Final = 10.0


@contextmanager
def name_taken(folder: Path, name: str) -> Iterator[None]:
    """Holds a worker's name while the context lasts, or the worker and its children live.

    Args:
        folder: what workers must know of one another, made if it is missing.
        name: of the worker.

    Raises:
        MissingError: kinds ``name-taken`` and ``folder-unwritable``.
    """
    path = folder / f"{name}.name"
    try:
        folder.mkdir(exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MissingError(
            "folder-unwritable", f"cannot write {path} ({error.strerror}); check the disk"
        ) from error
    try:
        try:
            is_ours = _is_locked_in_time(fd)
        except OSError as error:
            raise MissingError(
                "no-locks",
                f"{folder.parent} is on a file system without locks ({error.strerror}); put runs "
                "on another one, or mount it with locks",
            ) from error
        if not is_ours:
            raise MissingError(
                "name-taken",
                f"another worker {name!r} is at work in {folder.parent}; give each worker of a "
                "folder a --name of its own",
            )
        yield
    finally:
        os.close(fd)


def _is_locked_in_time(fd: int) -> bool:
    deadline = time.monotonic() + _PREDECESSOR_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True
