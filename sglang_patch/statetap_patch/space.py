"""Room in the dump folder: reserved when a request is admitted, given back when it ends.

    .<attempt>.reserved     made by the tokenizer process, full size, belongs to nobody yet
    .<attempt>.unfinished   taken over by a writer thread, being filled
    <key>.safetensors       published; whoever fetched it deletes it

The names carry the attempt, not the key, so that a retry never meets what an earlier attempt
left. Each step is one rename or link, so at any moment exactly one process owns a file.
"""

import logging
import os
import time
from pathlib import Path
from typing import Final

from statetap_contract.dump import is_dump_name

logger = logging.getLogger(__name__)

_RESERVED_SUFFIX: Final = ".reserved"
_UNFINISHED_SUFFIX: Final = ".unfinished"


def unfinished_path(folder: Path, attempt: str) -> Path:
    """Where an attempt's dump is filled."""
    return folder / f".{attempt}{_UNFINISHED_SUFFIX}"


def reserve(folder: Path, attempt: str, num_bytes: int) -> None:
    """Takes the space of a whole dump, before any of its rows is computed.

    Raises:
        OSError: no room (ENOSPC, EDQUOT), or a folder that cannot be written to.
    """
    path = _reserved_path(folder, attempt)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, num_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)


def take_over(folder: Path, attempt: str) -> Path:
    """Makes a reservation the caller's, and returns its new path.

    Raises:
        FileNotFoundError: it was given back, because the client or SGLang ended the request.
    """
    path = unfinished_path(folder, attempt)
    _reserved_path(folder, attempt).rename(path)
    return path


def give_back(folder: Path, attempt: str) -> None:
    """Ends a reservation that nobody has taken over; any other is left alone."""
    _reserved_path(folder, attempt).unlink(missing_ok=True)


def sweep(folder: Path) -> int:
    """Removes what a server that died left unfinished. Returns the number of files.

    Only for the sole server of the folder, before it starts.
    """
    leftovers = [
        file
        for suffix in (_RESERVED_SUFFIX, _UNFINISHED_SUFFIX)
        for file in folder.glob(f".*{suffix}")
    ]
    for file in leftovers:
        file.unlink(missing_ok=True)
    return len(leftovers)


def expire(folder: Path, keep_s: float) -> int:
    """Removes published dumps that nobody has fetched for ``keep_s`` seconds; returns how many.

    A client that comes back later has its prompt computed again.
    """
    num_removed = 0
    for file in folder.iterdir():
        if not is_dump_name(file.name):
            continue
        try:
            if time.time() - file.lstat().st_mtime > keep_s:
                file.unlink()
                num_removed += 1
        except FileNotFoundError:
            continue  # fetched meanwhile
        except OSError as error:  # the others' turn must come
            logger.warning("%s stays: %s", file, error)
    return num_removed


def keep(path: Path) -> None:
    """Starts a published dump's time anew, because its receipt was handed out again."""
    os.utime(path, follow_symlinks=False)


def _reserved_path(folder: Path, attempt: str) -> Path:
    return folder / f".{attempt}{_RESERVED_SUFFIX}"
