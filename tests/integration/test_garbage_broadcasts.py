"""Garbage in the broadcasts by which Flower looks at workers: dropped, and the worker lives."""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from celery import Celery
from statetap_contract import celery_settings

from .bench import Bench
from .test_garbage_messages import MB, QUEUE, await_good_job, good_job, peak_bytes


def broadcast(bench: Bench, flower: Celery, *items: bytes) -> None:
    """Sends items one by one; the next when the worker answers, as it may subscribe anew."""
    with bench.redis.client() as client:
        for item in items:
            assert client.publish("/0.celery.pidbox", item) >= 1
            bench.wait_until(lambda: answers(flower))


def answers(flower: Celery) -> bool:
    """Whether the worker answers a broadcast."""
    return bool(flower.control.broadcast("ping", reply=True, timeout=1, limit=1))


def command(method: str, **arguments: Any) -> bytes:
    """A remote command, as Celery and Flower send it."""
    return broadcast_of({"method": method, "arguments": arguments, "destination": None})


def broadcast_of(content: Any, **headers: Any) -> bytes:
    return json.dumps(
        {
            "body": base64.b64encode(json.dumps(content).encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"clock": 1, "expires": 0} | headers,
            "properties": {
                "delivery_mode": 1,
                "delivery_info": {"exchange": "celery.pidbox", "routing_key": ""},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": "tag",
            },
        }
    ).encode()


@pytest.fixture
def flower(bench: Bench) -> Iterator[Celery]:
    """What Flower asks workers with, once it is answered."""
    with Celery("flower") as app:
        app.conf.update(celery_settings(bench.redis.url))
        bench.wait_until(lambda: answers(app))
        yield app


def test_garbage_broadcasts_are_dropped(bench: Bench, flower: Celery) -> None:
    """Whatever their shape; what Flower asks is still answered."""
    bomb = base64.b64encode(zlib.compress(bytes(300 * MB))).decode()
    worker = psutil.Process(bench.worker.pid)
    most_before = peak_bytes(worker)
    broadcast(
        bench,
        flower,
        b"garbage",
        b"\xff\xfe",
        b"[" * 100_000,
        b"7",
        b"{}",
        b'{"properties": {}}',
        broadcast_of("no command"),
        broadcast_of([1]),
        broadcast_of({"method": "no such command"}),
        broadcast_of({"method": ["a"], "arguments": 7}),
        broadcast_of({"method": "ping", "reply_to": "nobody"}),
        broadcast_of({"method": "ping", "reply_to": {}}),
        broadcast_of({"method": "ping"}, clock="noon"),
        broadcast_of({"method": "ping"}, compression="zlib"),
        broadcast_of({}).replace(b"base64", b"rot13"),
        broadcast_of({}).replace(b"json", b"x-python-serialize"),
        json.dumps(json.loads(broadcast_of({}, compression="zlib")) | {"body": bomb}).encode(),
    )
    await_good_job(bench)
    assert peak_bytes(worker) - most_before < 100 * MB


def test_remote_commands_change_nothing(bench: Bench, flower: Celery) -> None:
    """Nobody who reaches Redis can stop workers, or have them drop messages; looking is free."""
    refused = flower.control.broadcast("shutdown", reply=True, timeout=5, limit=1)
    ((_, answer),) = refused[0].items()
    assert "SIGTERM" in answer["error"]
    broadcast(
        bench,
        flower,
        command("revoke", task_id=good_job().key, terminate=True, signal="SIGKILL"),
        command("hello", from_node="x", revoked={good_job().key: 1}),
        command("terminate", task_id=good_job().key, signal="SIGKILL"),
        command("cancel_consumer", queue=QUEUE),
        command("add_consumer", queue="another"),
        command("pool_shrink", n=1),
        command("pool_restart"),
        command("autoscale", max=1, min=1),
        command("rate_limit", task_name="statetap.extract", rate_limit="1/h"),
        command("time_limit", task_name="statetap.extract", hard=0.001, soft=0.001),
    )
    await_good_job(bench)
    assert len(bench.children()) == 2
    inspect = flower.control.inspect(timeout=5, limit=1)
    for look in ("stats", "active_queues", "registered", "scheduled", "active", "reserved"):
        ((name, seen),) = getattr(inspect, look)().items()
        assert name.startswith("w@")
        assert "error" not in seen
    ((_, queues),) = inspect.active_queues().items()
    assert [queue["name"] for queue in queues] == [QUEUE]
    for look in ("revoked", "conf"):
        assert getattr(inspect, look)()
