"""What processes of ours leave behind: told apart from others' by a mark that all inherit."""

import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

#: An environment variable; whatever the tests start inherits it, and so does what that starts.
MARK: Final = "STATETAP_CHAOS"

_SHARED_MEMORY: Final = "/dev/shm/"
_POLL_S: Final = 0.2


def new_mark() -> str:
    return uuid.uuid4().hex


class Census:
    """All processes that inherited a mark, as often as it looks, and their shared memory.

    Some overwrite their environment to show another name; they are known by their parents, for as
    long as these live.
    """

    def __init__(self, mark: str) -> None:
        #: Files on shared memory that any of them had open or mapped.
        self.shared_memory: set[str] = set()
        self._mark = mark
        self._seen: set[psutil.Process] = set()

    def look(self) -> None:
        """Adds the processes that there are now, and what they have on shared memory."""
        for process in self._family():
            self._seen.add(process)
            self.shared_memory |= _shared_memory_of(process)

    def remaining(self, timeout_s: float) -> list[str]:
        """Those of all looks that still run after some time, a line each."""
        deadline_s = time.monotonic() + timeout_s
        self.look()
        while (left := self._running()) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return [_line(process) for process in left]

    def _running(self) -> list[psutil.Process]:
        return [process for process in self._seen if _is_running(process)]

    def _family(self) -> Iterator[psutil.Process]:
        family: set[int] = set()
        # Parents come before their children, or nearly always: pids grow.
        for process in psutil.process_iter():
            try:
                if process.ppid() in family or process.environ().get(MARK) == self._mark:
                    family.add(process.pid)
                    yield process
            except psutil.Error:
                continue


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _shared_memory_of(process: psutil.Process) -> set[str]:
    folder = Path(f"/proc/{process.pid}")
    try:
        maps = (folder / "maps").read_text()
        opened = [str(link.readlink()) for link in (folder / "fd").iterdir()]
    except OSError:
        return set()  # it has just ended
    mapped = re.findall(rf"\s({_SHARED_MEMORY}.*)$", maps, re.MULTILINE)
    paths = {*mapped, *(path for path in opened if path.startswith(_SHARED_MEMORY))}
    return {path for path in paths if not path.endswith(" (deleted)")}


def _line(process: psutil.Process) -> str:
    try:
        return f"pid {process.pid} of parent {process.ppid()}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"pid {process.pid}"
