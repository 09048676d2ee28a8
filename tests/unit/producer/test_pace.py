"""Rates by the times of the samples, with a clock that the test sets."""

import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from statetap_local.made_runs import made_run
from statetap_producer.queueing.pace import Pace, PaceMeter
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder

from .conftest import give_up, prompts_of, store

#: Bytes of a token: three float32 slots of 16, id and mask.
TOKEN_BYTES = 3 * 16 * 4 + 5
START_S = 1_800_000_000


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """Ten prompts of 100 tokens."""
    return made_run(tmp_path / "made", *[100] * 10)


class Clock:
    """Seconds since 1970, for writers and for the meter."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s: float = START_S
        fake = SimpleNamespace(**vars(time))
        fake.time_ns = lambda: int(self.now_s * 1_000_000_000)
        monkeypatch.setattr("statetap_store.writer.time", fake)
        monkeypatch.setattr("statetap_store.run_scanner.time", fake)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def measure(run: RunFolder, clock: Clock) -> Pace:
    state = RunState(run)
    return PaceMeter(run, lambda: clock.now_s)(state, state.numbers())


def store_at(run: RunFolder, clock: Clock, number: int, second: int, worker: str = "w-00") -> None:
    clock.now_s = START_S + second
    store(run, prompts_of(run)[number], worker=worker)


def test_nothing_stored_has_no_pace(made: RunFolder, clock: Clock) -> None:
    """Nothing moves, and nobody knows how long it will take."""
    pace = measure(made, clock)
    assert [pace.tokens_per_s, pace.bytes_per_s] == [0.0, 0.0]
    assert (pace.overall_tokens_per_s, pace.left_s, pace.disk_full_s) == (None, None, None)
    assert (pace.writers, pace.servers) == ((), ())


def test_rates_are_those_of_the_times_in_the_shards(made: RunFolder, clock: Clock) -> None:
    """Now is the last half minute; overall is from the first sample to the last."""
    for number, second in enumerate((0, 10, 80, 90, 100)):
        store_at(made, clock, number, second)
    pace = measure(made, clock)
    assert pace.tokens_per_s == pytest.approx(300 / 30)
    assert pace.bytes_per_s == pytest.approx(10 * TOKEN_BYTES)
    assert pace.overall_tokens_per_s == pytest.approx(500 / 100)
    assert pace.overall_bytes_per_s == pytest.approx(5 * TOKEN_BYTES)
    assert pace.left_s == pytest.approx(500 / 10)


def test_a_run_that_has_just_begun_has_a_shorter_past(made: RunFolder, clock: Clock) -> None:
    """Two samples in the first five seconds are not spread over thirty."""
    store_at(made, clock, 0, 0)
    store_at(made, clock, 1, 5)
    assert measure(made, clock).tokens_per_s == pytest.approx(200 / 5)


def test_a_run_that_pauses_goes_on_at_its_usual_rate(made: RunFolder, clock: Clock) -> None:
    """The time left is by the overall rate while nothing moves."""
    store_at(made, clock, 0, 0)
    store_at(made, clock, 1, 100)
    clock.now_s += 1000
    pace = measure(made, clock)
    assert pace.tokens_per_s == 0.0
    assert pace.left_s == pytest.approx(800 / 2)


def test_writers_and_servers_are_told_apart(made: RunFolder, clock: Clock) -> None:
    """Samples, tokens, rate and last sample of each, over all of its shards."""
    for number, (second, worker) in enumerate([(0, "a-00"), (50, "b-01"), (60, "b-01")]):
        store_at(made, clock, number, second, worker)
    clock.now_s += 4
    pace = measure(made, clock)
    a, b = pace.writers
    assert (a.name, a.num_samples, a.num_tokens, a.tokens_per_s) == ("a-00", 1, 100, 0.0)
    assert (b.name, b.num_samples, b.num_tokens) == ("b-01", 2, 200)
    assert b.tokens_per_s == pytest.approx(200 / 14)
    assert [a.last_sample_s, b.last_sample_s] == [pytest.approx(64), pytest.approx(4)]
    (server,) = pace.servers
    assert (server.name, server.num_samples, server.num_tokens) == ("here", 3, 300)
    assert server.tokens_per_s == pytest.approx(200 / 30)


def test_nothing_is_left_when_all_is_settled(made: RunFolder, clock: Clock) -> None:
    """Dead letters are not waited for."""
    *most, last = prompts_of(made)
    store(made, *most)
    give_up(made, last.key)
    pace = measure(made, clock)
    assert pace.left_s in (0.0, None)
    store(made, last, worker="w-01")
    assert measure(made, clock).disk_full_s is None


def test_a_disk_that_is_too_small_is_foreseen(
    made: RunFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its free bytes at the present rate, and only when the rest does not fit."""
    for number, second in enumerate((0, 10, 20)):
        store_at(made, clock, number, second)
    rest = 700 * TOKEN_BYTES
    for free, expected in ((rest, None), (rest - 1, (rest - 1) / (300 / 20 * TOKEN_BYTES))):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        pace = measure(made, clock)
        assert pace.free_bytes == free
        assert pace.disk_full_s == (None if expected is None else pytest.approx(expected))


class Far:
    """A run of which samples lie on other machines, and the meter that looks at it."""

    def __init__(self, run: RunFolder, clock: Clock) -> None:
        self._clock = clock
        self._state = RunState(run)
        self.told: Any = SimpleNamespace(
            num_tokens=0, num_bytes=0, keys=set(), letters={}, silent=[], workers=[]
        )
        self._state.settled.announcements = cast(Any, self.told)
        self._meter = PaceMeter(run, lambda: clock.now_s)

    def look(self, seconds: float, num_tokens: int, *workers: str) -> Pace:
        """After some seconds so many tokens are announced by these workers."""
        self._clock.now_s += seconds
        self.told.num_tokens = num_tokens
        self.told.workers = [SimpleNamespace(name=name, host="h") for name in workers]
        return self._meter(self._state, self._state.numbers())


def test_what_others_announce_counts_as_it_grows(made: RunFolder, clock: Clock) -> None:
    """Announcements have no times: the first look knows no rate, later ones that of the growth."""
    store_at(made, clock, 0, 0)
    far = Far(made, clock)
    first = far.look(0, 200, "a")
    assert (first.tokens_per_s, first.overall_tokens_per_s, first.left_s) == (None, None, None)
    far.look(40, 600, "a")
    assert far.look(20, 700, "a").tokens_per_s == pytest.approx(100 / 20)


def test_a_worker_that_goes_or_comes_back_is_no_rate(made: RunFolder, clock: Clock) -> None:
    """As when its disk is unmounted: what it holds is neither unstored nor stored that moment."""
    far = Far(made, clock)
    far.look(0, 700, "a", "b")
    for seconds, num_tokens, workers, expected in (
        (5, 300, ("a",), None),
        (5, 320, ("a",), 20 / 5),
        (5, 740, ("a", "b"), None),
        (5, 770, ("a", "b"), 30 / 5),
        # Its shards were brought here.
        (5, 400, ("a", "b"), None),
        (5, 0, (), 0.0),
        (5, 0, (), 0.0),
    ):
        pace = far.look(seconds, num_tokens, *workers)
        assert pace.tokens_per_s == (None if expected is None else pytest.approx(expected))
        assert pace.left_s is None or pace.left_s >= 0


def test_other_disks_do_not_fill_this_one(
    made: RunFolder, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is written here counts; where the run ends before, nothing is foreseen."""
    usage = SimpleNamespace(free=100 * TOKEN_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    far = Far(made, clock)
    far.look(0, 100, "a")
    assert far.look(10, 200, "a").disk_full_s is None
    # 100 tokens in 10 s here, and 100 there: 600 are left for 30 s, and 300 of them come here.
    store_at(made, clock, 0, 10)
    store_at(made, clock, 1, 20)
    far = Far(made, clock)
    far.look(0, 100, "a")
    pace = far.look(10, 200, "a")
    assert pace.tokens_per_s == pytest.approx(200 / 20 + 100 / 10)
    assert pace.left_s == pytest.approx(600 / 20)
    assert pace.disk_full_s == pytest.approx(100 / 10)
    usage.free = 310 * TOKEN_BYTES
    assert far.look(0, 200, "a").disk_full_s is None
