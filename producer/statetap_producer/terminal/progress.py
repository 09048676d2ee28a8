"""How a long step shows that it moves: on stderr, as a bar in a terminal, as lines in a log."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

#: Seconds between two lines in a log. What takes less leaves none.
LOG_INTERVAL_S: Final = 10.0

#: Takes what is done and what there is to do, None where that is not known.
OnProgress = Callable[[int, int | None], None]


@contextmanager
def bytes_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Over bytes; gives a function that takes the bytes done so far."""
    with _progress(label, decimal, DownloadColumn()) as show:
        yield lambda done: show(done, total)


@contextmanager
def rate_progress(label: str) -> Iterator[OnProgress]:
    """Over bytes with their rate; gives a function that takes bytes done and all bytes."""
    with _progress(label, decimal, DownloadColumn(), TransferSpeedColumn()) as show:
        yield show


@contextmanager
def count_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Over things; gives a function that takes the number done so far."""
    with _progress(label, "{:,}".format, MofNCompleteColumn()) as show:
        yield lambda done: show(done, total)


@contextmanager
def _progress(
    label: str, describe: Callable[[int], str], *columns: ProgressColumn
) -> Iterator[OnProgress]:
    if not Console(stderr=True).is_terminal:
        yield LogLines(label, describe)
        return
    with progress_bar(*columns, is_kept=False) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def progress_bar(*columns: ProgressColumn, is_kept: bool) -> Progress:
    """A bar with time left, and the columns given; it stays in the terminal or goes."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
        transient=not is_kept,
    )


class LogLines:
    """Progress as plain lines: ``planning: 1.2 GB of 4.8 GB``, one every ten seconds.

    Args:
        label: what is being done.
        describe: puts an amount into words.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        label: str,
        describe: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._describe = describe
        self._clock = clock
        self._shown_at = clock()
        self._console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)

    def __call__(self, done: int, total: int | None) -> None:
        """Shows a line if it is time for one."""
        if (now := self._clock()) - self._shown_at < LOG_INTERVAL_S:
            return
        self._shown_at = now
        of_all = "" if total is None else f" of {self._describe(total)}"
        self._console.print(f"{self._label}: {self._describe(done)}{of_all}")
