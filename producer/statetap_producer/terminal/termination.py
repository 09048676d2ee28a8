"""SIGTERM as an exception, for work that must not leave anything half-made."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit, so that what is under way is cleaned up."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        # What a shell says of a process that the signal ended.
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop_code(stop: BaseException) -> int:
    """The exit code, as shells have it, after Ctrl-C or the SystemExit of ``exit_on_sigterm``."""
    number = signal.SIGTERM if isinstance(stop, SystemExit) else signal.SIGINT
    return 128 + number
