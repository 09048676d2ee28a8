"""When a watch ends, by a clock that the test turns."""

from collections.abc import Iterable

from statetap_producer.broker import QueueCounts
from statetap_producer.run_state import RunNumbers
from statetap_producer.watch import STALLED_AFTER_S, Sighting, watch

IDLE, BUSY, TAKEN = QueueCounts(0, 0), QueueCounts(5, 0), QueueCounts(0, 1)


def seen(stored: int, queue: QueueCounts | None, dead: int = 0) -> Sighting:
    pending = 9 - stored - dead
    return Sighting(RunNumbers("demo", 9, stored, dead, pending, 90, 0, 0, {}, []), queue)


def follow(sightings: Iterable[Sighting]) -> tuple[list[Sighting], float]:
    """All sightings until the watch ends, and the seconds it took."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    ahead = iter(sightings)
    return list(watch(lambda: next(ahead), clock=lambda: now, sleep=sleep)), now


def test_a_watch_ends_when_nothing_is_pending() -> None:
    """Stored or dead, each prompt is settled in the end."""
    sightings, _ = follow([seen(0, BUSY), seen(5, BUSY), seen(8, IDLE, dead=1), seen(9, IDLE)])
    assert [s.numbers.stored for s in sightings] == [0, 5, 8]
    assert not sightings[-1].is_stalled


def test_a_run_that_nobody_works_on_is_stalled() -> None:
    """Nothing queued, nothing taken and nothing new for ten seconds ends the watch."""
    sightings, seconds = follow([seen(3, IDLE)] * 100)
    assert [s.is_stalled for s in sightings] == [False] * (len(sightings) - 1) + [True]
    assert seconds == STALLED_AFTER_S


def test_work_in_sight_is_no_stall() -> None:
    """A message queued or taken, or a new sample, starts the patience anew."""
    short = [seen(3, IDLE)] * 9
    looks = [*short, seen(3, TAKEN), *short, seen(3, BUSY), *short, *[seen(4, IDLE)] * 100]
    sightings, seconds = follow(looks)
    assert sightings[-1].is_stalled
    assert seconds == len([*short, TAKEN, *short, BUSY, *short]) + STALLED_AFTER_S


def test_without_redis_a_run_is_never_stalled() -> None:
    """Where the queue cannot be seen, only the disk can end the watch."""
    sightings, seconds = follow([*[seen(3, None)] * 100, seen(9, None)])
    assert not sightings[-1].is_stalled
    assert seconds > STALLED_AFTER_S
