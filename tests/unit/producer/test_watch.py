"""When a watch ends, by a clock that the test turns; and what a look sees."""

import itertools
from collections.abc import Iterable
from pathlib import Path

from statetap_local.made_runs import made_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing import watch as watch_module
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.enqueue import enqueue
from statetap_producer.queueing.pace import Pace
from statetap_producer.queueing.run_state import RunNumbers
from statetap_producer.queueing.watch import STALLED_AFTER_S, Lookout, Sighting, watch

from .conftest import prompts_of, store

PACE = Pace(None, None, None, None, None, 0, None, (), ())

#: Prompts queued and in flight.
IDLE, BUSY, TAKEN = (0, 0), (5, 0), (0, 1)


def seen(stored: int, queue: tuple[int, int] | None, dead: int = 0) -> Sighting:
    pending = 9 - stored - dead
    queued, in_flight = queue or (None, None)
    missing = None if queue is None else pending - sum(queue)
    places = queued, in_flight, missing
    numbers = RunNumbers("demo", 9, stored, dead, pending, *places, 90, 0, 0, {}, {}, [], [])
    return Sighting(numbers, PACE)


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
    sightings, _ = follow([seen(0, BUSY), seen(2, BUSY), seen(8, IDLE, dead=1), seen(9, IDLE)])
    assert [s.numbers.stored for s in sightings] == [0, 2, 8]
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


def test_each_look_sees_what_is_new(redis_server: LocalRedis, tmp_path: Path) -> None:
    """Shards and queue, and the parts add up."""
    run = made_run(tmp_path / "made", 5, 6, 7)
    first, *_ = prompts_of(run)
    with Broker(redis_server.url) as broker:
        lookout = Lookout(run, broker)
        assert places(lookout.look()) == (0, 0, 0, 3)
        enqueue(run, redis_server.url, window=0)
        wait_for(lookout, (0, 3, 0, 0))
        store(run, first)
        # Its message is still there, and counts no more.
        wait_for(lookout, (1, 2, 0, 0))


def test_the_queue_is_read_a_small_part_of_the_time(
    redis_server: LocalRedis, tmp_path: Path
) -> None:
    """Where reading it takes a second, it is read again twenty seconds later."""
    run = made_run(tmp_path / "made", 5, 6, 7)
    now_s = itertools.count()
    with Broker(redis_server.url) as broker:
        # Each question for the time takes a second: so does the first look, from 0 to 1.
        lookout = Lookout(run, broker, clock=lambda: float(next(now_s)))
        enqueue(run, redis_server.url, window=0)
        looks = [places(lookout.look()) for _ in range(25)]
    assert looks.index((0, 3, 0, 0)) == 20 - 2
    assert watch_module._QUEUE_PART == 1 / 20


def places(sighting: Sighting) -> tuple[int, int | None, int | None, int | None]:
    numbers = sighting.numbers
    return numbers.stored, numbers.queued, numbers.in_flight, numbers.missing


def wait_for(lookout: Lookout, expected: tuple[int, int, int, int]) -> None:
    for _ in range(10_000):
        if places(lookout.look()) == expected:
            return
    raise AssertionError(expected)
