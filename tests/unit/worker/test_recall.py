"""What a stop interrupts, and what it does not."""

import os
import signal

import pytest
from statetap_worker.failing.recall import Recall, Recalled, Urgency, pass_on


def stop() -> None:
    os.kill(os.getpid(), signal.SIGUSR2)


def test_the_first_stop_ends_a_wait() -> None:
    """And every wait that would begin afterwards."""
    recall = Recall()
    with pytest.raises(Recalled), recall.interrupts(Urgency.WAITING):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.WAITING):
        pytest.fail("a wait began")


def test_a_request_is_interrupted_by_the_second_stop_alone() -> None:
    """What the server has is finished after the first one."""
    recall = Recall()
    with recall.interrupts(Urgency.ASKING):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.ASKING):
        stop()


def test_nothing_else_is_interrupted() -> None:
    """What is being stored becomes durable, however often the worker is told to stop."""
    recall = Recall()
    for _ in range(5):
        stop()
    with pytest.raises(Recalled), recall.interrupts(Urgency.ASKING):
        pytest.fail("a request began")


def test_a_child_that_is_gone_is_no_error() -> None:
    """It may have ended a moment ago."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    pass_on([pid])
