"""The name of a place: one folder of runs on one disk, whoever looks at it."""

import errno
import os
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

from statetap_contract.announcement import PLACE_FILE, read_place
from statetap_store.file_bytes import sync_folder

#: What file systems say that have no hard links.
NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)

#: Seconds after which a file that is not whole was left by a crash, not by one who writes it.
_LEFT_S: Final = 60.0


def place_of(runs: Path) -> str:
    """32 hex digits, the same for all workers that share the folder, others for a copy of it.

    Raises:
        OSError: the folder cannot be written to, or another worker is about to name it.
    """
    file = runs / PLACE_FILE
    if not file.exists():
        _name(runs, file)
    try:
        return read_place(runs)
    except ValueError as error:
        if time.time() - file.stat().st_mtime > _LEFT_S:
            file.unlink(missing_ok=True)
        raise OSError(str(error)) from error


def _name(runs: Path, file: Path) -> None:
    """Of several workers that start together one wins."""
    text = f".{uuid.uuid4().hex}"
    own = runs / f"{PLACE_FILE}{text}"
    try:
        _write(own, text)
        # The file is whole when it appears.
        with suppress(FileExistsError):
            file.hardlink_to(own)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        with suppress(FileExistsError):
            _write(file, text)
    finally:
        own.unlink(missing_ok=True)
    sync_folder(runs)


def _write(path: Path, text: str) -> None:
    """Makes a new file, durable but for its name; leaves nothing behind where that fails."""
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        path.unlink(missing_ok=True)
        raise
