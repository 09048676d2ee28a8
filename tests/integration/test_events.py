"""What a real worker says of its messages, as Flower hears it."""

import ast
import json
import queue
from typing import Any

import pytest

from .bench import Bench

Event = dict[str, Any]

SUCCEEDED = "task-succeeded"


class Listener:
    """Takes the frames in which events come, as they are published."""

    def __init__(self, bench: Bench) -> None:
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._client = bench.redis.client()
        pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        pubsub.psubscribe(**{"*.celeryev/*": lambda frame: self._frames.put(frame["data"])})
        self._thread = pubsub.run_in_thread(sleep_time=0.1, daemon=True)

    def frames(self) -> list[list[Event]]:
        """All frames of events of messages so far."""
        self._thread.stop()
        self._thread.join()
        self._client.close()
        frames = []
        while not self._frames.empty():
            body = json.loads(json.loads(self._frames.get())["body"])
            frames.append(body if isinstance(body, list) else [body])
        # ``task-sent`` is said by whoever sends.
        said = "task-received", "task-started", SUCCEEDED
        return [frame for frame in frames if frame[0]["type"] in said]


@pytest.fixture
def listener(bench: Bench) -> Listener:
    return Listener(bench)


def test_nothing_that_is_said_of_a_message_is_lost(bench: Bench, listener: Listener) -> None:
    """Also not of the last ones before the worker ends, nor when it lost its connection."""
    bench.send_jobs([5] * 20)
    bench.wait_until(lambda: len(bench.stored_keys()) == 20)
    with bench.redis.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    bench.send_jobs([6] * 20)
    bench.wait_until(lambda: len(bench.stored_keys()) == 40)
    bench.worker.stop()
    frames = listener.frames()
    succeeded = [event for frame in frames for event in frame if event["type"] == SUCCEEDED]
    assert {ast.literal_eval(event["result"])["key"] for event in succeeded} == bench.stored_keys()


def test_messages_are_spoken_of_together(bench: Bench, listener: Listener) -> None:
    """Or Redis and Flower would have three times as much to do."""
    bench.send_jobs([5] * 200)
    bench.wait_until(lambda: len(bench.stored_keys()) == 200)
    bench.worker.stop()
    frames = listener.frames()
    num_said = sum(len(frame) for frame in frames)
    assert num_said >= 600
    assert sum(len(frame) for frame in frames if len({one["uuid"] for one in frame}) > 1) > 300


def test_a_result_is_readable(bench: Bench, listener: Listener) -> None:
    """Key, tokens, attempt and milliseconds of each stage."""
    [job] = bench.send_jobs([30])
    bench.wait_until(lambda: len(bench.stored_keys()) == 1)
    bench.worker.stop()
    [text] = [
        event["result"]
        for frame in listener.frames()
        for event in frame
        if event["type"] == SUCCEEDED
    ]
    result = ast.literal_eval(text)
    stages = {name: result.pop(name) for name in ("server_ms", "prove_ms", "store_ms")}
    assert result == {"key": job.key, "num_tokens": 30, "is_new": True, "attempt": 1}
    assert all(0 <= value < 60_000 for value in stages.values())
