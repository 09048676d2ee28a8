"""The folder of dumps at the server's start: its user's alone, with room, and with one server."""

import fcntl
import os
import stat
import sys
from pathlib import Path
from typing import Final

from statetap_contract import MissingError
from statetap_contract.dump import is_dump_name
from statetap_contract.regular_file import open_regular

from statetap_patch.space import sweep

#: Held by the one server of a dump folder.
_LOCK: Final = ".lock"

#: What Docker gives a container for /dev/shm where nobody says otherwise.
_DOCKERS_DEFAULT_BYTES: Final = 64 << 20

#: Bits of the mode of a folder that anybody but its owner can use.
_OTHERS: Final = 0o077


def check_dump_folder(path: Path, largest_dump_bytes: int) -> Path:
    """Checks that the folder and the dumps in it are this user's alone, and that there is room.

    Args:
        path: the folder.
        largest_dump_bytes: size of the longest prompt's dump.

    Returns:
        The folder, without links on the way to it.

    Raises:
        MissingError: kinds ``dumps-missing``, ``dumps-unwritable``, ``dumps-open``,
            ``dumps-foreign`` and ``dumps-too-small``.
    """
    path = path.resolve()
    if not path.is_dir():
        raise MissingError("dumps-missing", f"{path} is not a folder; make it, on shared memory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise MissingError("dumps-unwritable", f"{path} cannot be written to; change its owner")
    if (mode := stat.S_IMODE(path.stat().st_mode)) & _OTHERS:
        # What has the sticky bit, such as /dev/shm, is there for all.
        cure = f"mkdir -m 700 {path}/dumps" if mode & stat.S_ISVTX else f"chmod 700 {path}"
        raise MissingError(
            "dumps-open",
            f"other users can enter {path} (mode {mode:04o}), and states tell what the prompts "
            f"were; give a folder of this user alone: {cure}",
        )
    _refuse_foreign(path)
    room = os.statvfs(path)
    total_bytes = room.f_frsize * room.f_blocks
    if total_bytes < largest_dump_bytes:
        raise MissingError(
            "dumps-too-small",
            f"{path} has {total_bytes / 2**20:.0f} MiB and one prompt of full context length "
            f"needs {largest_dump_bytes / 2**20:.0f} MiB; enlarge it (Docker: --shm-size, or the "
            "size of the volume)",
        )
    if total_bytes == _DOCKERS_DEFAULT_BYTES:
        print(  # noqa: T201  a warning of the command's
            f"statetap-sglang: {path} has the 64 MB that Docker gives by default, room for "
            f"{total_bytes // largest_dump_bytes} prompts of full context length at a time, while "
            "the others wait; enlarge it with --shm-size, or give a volume in memory",
            file=sys.stderr,
        )
    return path


def _refuse_foreign(folder: Path) -> None:
    """Whose file it is can change it at any time, even in a folder that is closed by now."""
    # Lock and reserved room are hidden; what else lies there, such as lost+found, does no harm.
    used = (path for path in folder.iterdir() if is_dump_name(path.name) or path.name[0] == ".")
    for path in (folder, *used):
        if (owner := path.lstat().st_uid) != os.geteuid():
            raise MissingError(
                "dumps-foreign",
                f"{path} belongs to another user (uid {owner}), who can change it at any time; "
                "remove it, or give another folder",
            )


def claim(dumps: Path) -> None:
    """Makes this process the folder's only server, and clears what an earlier one left unfinished.

    The lock lives as long as the process does, across ``execve``.

    Args:
        dumps: the folder, checked.

    Raises:
        MissingError: kinds ``dumps-unusable`` and ``dumps-in-use``.
    """
    try:
        fd = open_regular(dumps / _LOCK, os.O_CREAT | os.O_RDWR)
    except ValueError as error:
        raise MissingError("dumps-unusable", f"{error}; remove it") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise MissingError(
            "dumps-in-use", f"another server publishes dumps in {dumps}; give this one its own"
        ) from error
    os.set_inheritable(fd, True)
    sweep(dumps)
