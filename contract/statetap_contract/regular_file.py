"""Opens a file of the dump folder, and nothing that somebody may have put in its place."""

import errno
import os
import stat
from pathlib import Path
from typing import Final

#: What opening a link, a pipe that nobody reads, or a folder to write to ends with.
_NO_FILE: Final = (errno.ELOOP, errno.ENXIO, errno.EISDIR)


def open_regular(path: Path, flags: int) -> int:
    """Opens a file; a link is not followed, a pipe is not waited for.

    Args:
        path: the file.
        flags: of ``os.open``. What ``O_CREAT`` makes is its owner's alone.

    Returns:
        The descriptor, which no child inherits.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is no regular file.
    """
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise ValueError(f"{path} is no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path} is no regular file")
    return fd
