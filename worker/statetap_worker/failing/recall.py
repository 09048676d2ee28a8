"""Recall: how a process that was told to stop gives back the prompt that it has in hand.

The worker's parent passes each of its SIGTERMs on to its children. After the first, a prompt that
waits goes back to the queue, and one that its server has is finished. After the second, that one
goes back too.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from types import FrameType
from typing import Final

_SIGNAL: Final = signal.SIGUSR2


class Recalled(BaseException):
    """What was interrupted goes back to the queue. No error: nothing here may handle it as one."""


class Urgency(IntEnum):
    """How often a worker must be told to stop before something is interrupted."""

    WAITING = 1
    ASKING = 2


class Recall:
    """Made in a child; its signal interrupts only what says that it may be.

    Args:
        on_signal: called with each signal, whatever the process is at. Its OSError is nobody's: it
            would come out of whatever that is, and be taken for its failure.
    """

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_any = on_signal
        self._num_signals = 0
        self._needed: int | None = None
        signal.signal(_SIGNAL, self._on_signal)

    @contextmanager
    def interrupts(self, urgency: Urgency) -> Iterator[None]:
        """While the context lasts, ``Recalled`` is raised in it once the worker is to stop."""
        self._needed = urgency
        try:
            if self._num_signals >= urgency:
                raise Recalled
            yield
        finally:
            self._needed = None

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._num_signals += 1
        with suppress(OSError):
            self._on_any()
        if self._needed is not None and self._num_signals >= self._needed:
            raise Recalled


def pass_on(pids: Iterable[int]) -> None:
    """Tells children that their worker was told to stop."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, _SIGNAL)
