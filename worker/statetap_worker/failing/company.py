"""Company: who is at a server at the same time, all prompts or one that is suspected.

When a server dies, all prompts in flight are suspects, and nearly all are innocent. Each of them is
tried again alone, so that a second death has one author.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Company:
    """Locks that all processes share which ask one server. The kernel frees those of dead ones.

    Whoever is alone holds the gate while the others leave, so that they are not overtaken for
    ever by those who come.

    Args:
        path: two files are made, with the endings ``.gate`` and ``.room``.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._gate = _open(path.with_name(f"{path.name}.gate"))
        self._room = _open(path.with_name(f"{path.name}.room"))

    @contextmanager
    def joined(self, *, is_alone: bool) -> Iterator[None]:
        """Waits until this prompt may go to the server; it is there while the context lasts."""
        how = fcntl.LOCK_EX if is_alone else fcntl.LOCK_SH
        fcntl.flock(self._gate, how)
        try:
            fcntl.flock(self._room, how)
        finally:
            fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def close(self) -> None:
        """Lets go of the files."""
        os.close(self._gate)
        os.close(self._room)


def _open(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
