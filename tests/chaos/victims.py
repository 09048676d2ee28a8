"""Victims: the processes of an arena, found when somebody is wanted; all by their own pids."""

import random
import time
from collections.abc import Callable
from typing import Final

import psutil

from .arena import START_S, Arena
from .keeper import Keeper

_POLL_S: Final = 0.05


class Victims:
    """Whom there is to kill. Waits for those who are just being started.

    Raises:
        AssertionError: by all methods: what was killed was not replaced.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena

    def redis(self) -> psutil.Process:
        return _main(self._arena.redis)

    def server(self) -> psutil.Process:
        return _main(self._arena.server)

    def reconcile(self) -> psutil.Process:
        return _main(self._arena.reconcilers[0])

    def server_part(self, draw: random.Random) -> psutil.Process:
        """The server's scheduler or its detokenizer."""
        return draw.choice(
            _some(
                lambda: [
                    part
                    for part in self.server().children(recursive=True)
                    if "sglang::" in " ".join(part.cmdline())
                ]
            )
        )

    def parent(self, draw: random.Random) -> psutil.Process:
        """The main process of a worker."""
        return draw.choice(_some(self._parents))

    def family(self, draw: random.Random) -> list[psutil.Process]:
        """A worker's parent and children."""

        def look() -> list[psutil.Process]:
            parent = self.parent(draw)
            return [parent, *parent.children()]

        return _some(look)

    def child(self, draw: random.Random) -> psutil.Process:
        """A child of a worker."""
        return draw.choice(
            _some(lambda: [child for parent in self._parents() for child in parent.children()])
        )

    def _parents(self) -> list[psutil.Process]:
        found = [keeper.process for keeper in self._arena.workers]
        return [process for process in found if process is not None]


def _main(keeper: Keeper) -> psutil.Process:
    [process] = _some(lambda: [] if keeper.process is None else [keeper.process])
    return process


def _some(look: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            if found := look():
                return found
        except psutil.NoSuchProcess:
            pass  # it ended meanwhile: look again
        time.sleep(_POLL_S)
    raise AssertionError(f"what was killed was not replaced within {START_S:.0f} s")
