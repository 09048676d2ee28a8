"""What moves in the terminal while a command works: on stderr, and only in a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
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


@contextmanager
def bytes_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over bytes; gives a function that takes the bytes done so far."""
    with progress_bar(DownloadColumn(), is_kept=False) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextmanager
def rate_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar over bytes with their rate; gives a function that takes bytes done and all bytes."""
    with progress_bar(DownloadColumn(), TransferSpeedColumn(), is_kept=False) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def count_progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar over things; gives a function that takes the number done so far."""
    with progress_bar(MofNCompleteColumn(), is_kept=False) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.update(task, completed=done)


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
