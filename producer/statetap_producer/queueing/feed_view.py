"""How filling the queue looks: a bar in a terminal, lines in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.filesize import decimal
from rich.progress import MofNCompleteColumn, TextColumn

from statetap_producer.queueing.feed import FeedProgress
from statetap_producer.terminal.progress import LogLines, progress_bar


@contextmanager
def feed_progress(label: str, total: int | None) -> Iterator[Callable[[FeedProgress], None]]:
    """Over prompts; gives a function that takes how far the feed is.

    Args:
        label: what is being done.
        total: prompts that will be queued or skipped, None where that is not known.
    """
    if not Console(stderr=True).is_terminal:
        yield _lines(label, total)
        return
    with progress_bar(
        MofNCompleteColumn(), TextColumn("{task.fields[queue]}"), is_kept=False
    ) as progress:
        task = progress.add_task(label, total=total, queue="")

        def show(now: FeedProgress) -> None:
            done = now.num_enqueued + now.num_skipped
            progress.update(task, completed=done, queue=_queue_in_words(now))

        yield show


def _lines(label: str, total: int | None) -> Callable[[FeedProgress], None]:
    latest: FeedProgress

    def words(_: int) -> str:
        of_all = "" if total is None else f" of {total:,} prompts"
        done = latest.num_enqueued + latest.num_skipped
        return f"{done:,}{of_all}, {_queue_in_words(latest)}"

    log = LogLines(label, words)

    def show(now: FeedProgress) -> None:
        nonlocal latest
        latest = now
        log(now.num_enqueued, None)

    return show


def _queue_in_words(now: FeedProgress) -> str:
    memory = decimal(now.memory.used_bytes)
    if now.is_memory_full:
        memory += f" of {decimal(now.memory.limit_bytes)}: waiting for memory"
    return f"{now.num_waiting:,} in the queue, Redis {memory}"
