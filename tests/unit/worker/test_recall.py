"""What a stop interrupts, and what it does not."""

import os
import signal

import pytest
from statetap_worker.failing.recall import Recall, Recalled, Urgency, pass_on


def nothing() -> None:
    pass


def stop() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def test_the_first_stop_ends_a_wait() -> None:
    """And every wait that would begin afterwards."""
    recall = Recall(nothing)
    with pytest.raises(Recalled), recall.interrupts(Urgency.WAITING):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.WAITING):
        pytest.fail("a wait began")


def test_a_request_is_interrupted_by_the_second_stop_alone() -> None:
    """What the server has is finished after the first one."""
    recall = Recall(nothing)
    with recall.interrupts(Urgency.ASKING):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.ASKING):
        stop()


def test_nothing_else_is_interrupted() -> None:
    """What is being stored becomes durable, however often the worker is told to stop."""
    recall = Recall(nothing)
    for _ in range(5):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.ASKING):
        pytest.fail("a request began")


def test_whoever_asks_is_told_of_each_stop() -> None:
    """Also while nothing may be interrupted."""
    told: list[int] = []
    Recall(lambda: told.append(1))
    stop()
    stop()
    assert told == [1, 1]


def test_a_failure_of_whoever_is_told_comes_out_nowhere() -> None:
    """It would look like a failure of whatever the process is at, and lose its message."""

    def fail() -> None:
        raise OSError(28, "No space left on device")

    recall = Recall(fail)
    stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.WAITING):
        pytest.fail("a wait began")


def test_a_child_that_is_gone_is_no_error() -> None:
    """It may have ended a moment ago."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    pass_on([pid])
