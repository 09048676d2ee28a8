"""Work on many pieces in several processes of this machine, with results in order."""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from threading import Thread
from typing import Final, Protocol, TypeVar

from statetap_contract import MissingError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Pieces handed out and not yet taken back, for each process.
_WAITING: Final = 4


class OrderedMap(Protocol):
    """What ``map`` does, whoever does the work."""

    def __call__(
        self, function: Callable[[Item], Result], items: Iterable[Item], /
    ) -> Iterator[Result]:
        """Results in the order of the items."""
        ...


@contextmanager
def process_pool(num_processes: int) -> Iterator[OrderedMap]:
    """An ``OrderedMap`` over processes, for functions and items that can be pickled.

    The processes are new interpreters, since a fork of a process with threads may hang. They end
    with the block, at once where it raises, and with this process, however it ends. Nothing else
    in this process starts processes meanwhile.

    Raises:
        MissingError: kind ``process-killed``: one of them was killed.
    """
    not_ours = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, context, initializer=_end_with_parent)

    def submit(function: Callable[[Item], Result], item: Item) -> "Future[Result]":
        # Processes start here, and Ctrl-C is for this one alone: they inherit its signal mask.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return pool.submit(function, item)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def in_order(function: Callable[[Item], Result], items: Iterable[Item], /) -> Iterator[Result]:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(submit(function, item))
            if len(waiting) == _WAITING * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    try:
        yield in_order
    except BaseException as error:
        for process in set(multiprocessing.active_children()) - not_ours:
            process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise MissingError(
                "process-killed",
                "one of the processes that share this work was killed, perhaps for the memory it "
                "took: try again with fewer",
            ) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A process that waits for work does not see by itself that nobody is left to give any."""

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()
