"""Follows a run until nothing more will happen."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from statetap_producer.queueing.announcements import AnnouncedWorker
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.pace import Pace, PaceMeter
from statetap_producer.queueing.run_state import RunNumbers, RunState
from statetap_producer.run.run_folder import RunFolder

#: Seconds between two looks.
_INTERVAL_S: Final = 1.0

#: Reading all messages of the queue takes at most this part of the time; in between, what was read
#: last counts, less what was settled since.
_QUEUE_PART: Final = 0.05

#: Seconds without a message and without a new sample after which a run counts as stalled. A
#: message that a worker is taking is in neither place for a moment, so one look proves nothing.
STALLED_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A run at one moment."""

    numbers: RunNumbers
    pace: Pace
    #: Workers that have announced samples, wherever these lie.
    announced: tuple[AnnouncedWorker, ...] = ()
    #: Prompts are pending that nobody will work on.
    is_stalled: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_stalled or not self.numbers.pending


class Lookout:
    """Looks at a run, again and again.

    Raises:
        StatetapError: what ``RunState`` raises; also by each look.
    """

    def __init__(
        self, run: RunFolder, broker: Broker | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._meter = PaceMeter(run)
        begun_s = clock()
        self._state = RunState(run, broker)
        self._is_fresh = True
        self._queue_due_s = self._next_due(begun_s)

    def look(self) -> Sighting:
        """One look. The queue comes first, so that a sample stored in between is not missed."""
        begun_s = self._clock()
        if not self._is_fresh and begun_s >= self._queue_due_s:
            self._state.look_at_queue()
            self._queue_due_s = self._next_due(begun_s)
        if not self._is_fresh:
            self._state.refresh()
        self._is_fresh = False
        numbers = self._state.numbers()
        announcements = self._state.settled.announcements
        announced = tuple(announcements.workers) if announcements else ()
        return Sighting(numbers, self._meter(self._state, numbers), announced)

    def _next_due(self, begun_s: float) -> float:
        now_s = self._clock()
        return now_s + (now_s - begun_s) * (1 / _QUEUE_PART - 1)


def watch(
    look_again: Callable[[], Sighting],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Sighting]:
    """Sightings about once a second; the last is one that ``is_over``.

    Without a Redis to look at, a run never counts as stalled.
    """
    settled = -1
    alive_at = clock()
    while True:
        sighting = look_again()
        numbers = sighting.numbers
        is_idle = numbers.missing is not None and numbers.missing == numbers.pending
        if not is_idle or numbers.stored + numbers.dead != settled:
            alive_at = clock()
        settled = numbers.stored + numbers.dead
        is_stalled = numbers.pending > 0 and clock() - alive_at >= STALLED_AFTER_S
        sighting = replace(sighting, is_stalled=is_stalled)
        yield sighting
        if sighting.is_over:
            return
        sleep(_INTERVAL_S)
