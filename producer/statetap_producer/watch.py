"""Follows a run until nothing more will happen."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from statetap_contract import queue_name

from statetap_producer.broker import Broker, QueueCounts
from statetap_producer.run_state import RunNumbers, RunState

#: Seconds between two looks.
_INTERVAL_S: Final = 1.0

#: Seconds without a message and without a new sample after which a run counts as stalled. A
#: message that a worker is taking is in neither place for a moment, so one look proves nothing.
STALLED_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A run at one moment."""

    numbers: RunNumbers
    #: None where no Redis was given.
    queue: QueueCounts | None
    #: Prompts are pending that nobody will work on.
    is_stalled: bool = False

    @property
    def is_over(self) -> bool:
        return self.is_stalled or not self.numbers.pending


def look(state: RunState, broker: Broker | None) -> Sighting:
    """One look. The queue comes first, so that a sample stored in between is not missed."""
    queue = broker.counts(queue_name(state.spec.digest)) if broker else None
    state.refresh()
    return Sighting(state.numbers(), queue)


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
        numbers, queue = sighting.numbers, sighting.queue
        if queue is None or queue != QueueCounts(0, 0) or numbers.stored + numbers.dead != settled:
            alive_at = clock()
        settled = numbers.stored + numbers.dead
        is_stalled = numbers.pending > 0 and clock() - alive_at >= STALLED_AFTER_S
        sighting = Sighting(numbers, queue, is_stalled)
        yield sighting
        if sighting.is_over:
            return
        sleep(_INTERVAL_S)
