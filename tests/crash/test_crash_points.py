"""Where crashes come, and what they do to the call that is under way."""

import random

from .crashes import crash, crash_point
from .disk import PAGE_BYTES, Disk
from .trace import Call, Replay


def test_a_write_under_way_is_torn() -> None:
    """Any part of it from the start may have happened, often up to the end of a page."""
    data = b"x" * 3 * PAGE_BYTES
    lengths = []
    for seed in range(200):
        replay = Replay(Disk(), {1: 0})
        replay.apply(Call("create", 2, paths=("a",)))
        disk = crash("kill", replay, [Call("write", 2, 100, data)], random.Random(seed))
        [file] = disk.image().files.values()
        lengths.append(file.length)
        content = b"".join(file.pages[number] for number in sorted(file.pages))
        assert content == (bytes(100) + data)[: file.length]
    assert {0, PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES} <= set(lengths)
    assert len(set(lengths)) > 50


def test_a_call_that_is_no_write_happens_or_not() -> None:
    """A crash before it leaves nothing of it."""
    replay = Replay(Disk(), {1: 0})
    disk = crash("kill", replay, [Call("create", 2, paths=("a",))], random.Random(1))
    assert disk.image().files == {}


def test_a_power_loss_starts_from_what_is_durable() -> None:
    """An unsynced file may be gone, and what is left cannot be lost again."""
    left = set()
    for seed in range(50):
        generator = random.Random(seed)
        replay = Replay(Disk(), {1: 0})
        replay.apply(Call("create", 2, paths=("a",)))
        disk = crash("power", replay, [], generator)
        left.add(len(disk.image().files))
        assert disk.after_power_loss(generator) == disk.image()
    assert left == {0, 1}


def test_half_of_the_crashes_come_around_rare_calls() -> None:
    """Any number of calls may precede the crash, none and all included."""
    calls = [Call("write", 2, 0, b"x")] * 1000
    calls[500] = Call("link", 0, paths=("a", "b"))
    points = [crash_point(calls, random.Random(seed)) for seed in range(20_000)]
    near = sum(492 <= point <= 504 for point in points)
    assert 9_500 < near < 11_000
    assert (min(points), max(points)) == (0, 1000)
    assert {crash_point([], random.Random(seed)) for seed in range(9)} == {0}
