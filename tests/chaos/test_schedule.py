"""What happens is drawn from the seed alone, and all of it happens."""

from collections import Counter

import pytest

from .schedule import KILLS, Kind, make_schedule


@pytest.mark.parametrize("num_kills", [7, 30, 300])
def test_everything_happens_and_kills_are_as_many_as_asked(num_kills: int) -> None:
    """Each kind at least once, FLUSHALL exactly once, in the middle half."""
    kinds = [event.kind for event in make_schedule(num_kills, 1000, seed=3)]
    assert sum(kind in KILLS for kind in kinds) == num_kills
    assert set(kinds) == set(Kind)
    assert kinds.count(Kind.FLUSH) == 1
    assert len(kinds) / 4 - 1 <= kinds.index(Kind.FLUSH) <= 3 * len(kinds) / 4 + 1


def test_most_kills_are_of_children_and_few_of_the_server() -> None:
    """A server takes long to start; a child is back in a moment."""
    kinds = Counter(event.kind for event in make_schedule(300, 20_000, seed=3))
    assert kinds[Kind.CHILD] > 150
    assert 9 <= kinds[Kind.SERVER] + kinds[Kind.SERVER_PART] <= 20
    assert kinds[Kind.REDIS] >= 30
    assert kinds[Kind.PARENT] >= 20


def test_a_seed_gives_one_schedule() -> None:
    """The same again, and another for another seed."""
    assert make_schedule(30, 1000, seed=3) == make_schedule(30, 1000, seed=3)
    assert make_schedule(30, 1000, seed=3) != make_schedule(30, 1000, seed=4)


def test_the_last_event_comes_before_the_last_sample() -> None:
    """Nine tenths of the samples lie between events."""
    gaps = sum(event.num_samples for event in make_schedule(30, 10_000, seed=3))
    assert gaps == pytest.approx(9000, abs=50)
