"""One process at a time fills a queue, against a real Redis."""

import json
import os
import socket
import time
from collections.abc import Callable

import pytest
from statetap_contract import StatetapError
from statetap_local.services import LocalRedis
from statetap_producer.queueing import queue_lease
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.queue_lease import QueueLease

DIGEST = "ab" * 16
NAME = f"statetap.lease.{DIGEST}.demo"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of a second, so that no test waits for long."""
    monkeypatch.setattr(queue_lease, "LEASE_S", 1.0)
    monkeypatch.setattr(queue_lease, "_RENEWAL_S", 0.2)
    monkeypatch.setattr(queue_lease, "_LOOK_S", 0.05)


def lease(redis_server: LocalRedis, run: str = "demo") -> QueueLease:
    return QueueLease(Broker(redis_server.url), DIGEST, run)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_second_one_is_told_who_is_first(redis_server: LocalRedis) -> None:
    """By host and process; another run of the same queue is free, and so is this one later."""
    with lease(redis_server):
        with pytest.raises(StatetapError) as caught, lease(redis_server):
            pass
        with lease(redis_server, "another"):
            pass
    assert (caught.value.kind, caught.value.exit_code) == ("queue-taken", 3)
    assert f"process {os.getpid()} on {socket.gethostname()} since 20" in caught.value.message
    with lease(redis_server):
        pass


@pytest.mark.timeout(60)
def test_a_live_holder_is_told_by_its_renewals(
    redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a lease to run out that somebody renews."""
    monkeypatch.setattr(queue_lease, "LEASE_S", 1000.0)
    with lease(redis_server), pytest.raises(StatetapError) as caught, lease(redis_server):
        pass
    assert caught.value.kind == "queue-taken"


def test_the_lease_of_a_dead_process_runs_out(redis_server: LocalRedis) -> None:
    """Nobody renews it: it is waited for and taken over."""
    with redis_server.client() as client:
        client.set(NAME, "a process that was killed", px=700)
        with lease(redis_server):
            assert json.loads(client.get(NAME) or b"")["pid"] == os.getpid()


def test_a_lease_of_another_form_is_somebodys(redis_server: LocalRedis) -> None:
    """Without an end and without a name it is respected all the same."""
    with redis_server.client() as client:
        client.set(NAME, b"\xff")
    with pytest.raises(StatetapError, match="by another process"), lease(redis_server):
        pass


def test_a_lease_outlives_its_time_while_it_is_held(redis_server: LocalRedis) -> None:
    """It is renewed for as long as the work takes, and gone when the work is done."""
    with redis_server.client() as client:
        with lease(redis_server) as held:
            time.sleep(1.5)
            held.check()
            assert client.exists(NAME)
        assert not client.exists(NAME)


def test_a_lease_that_redis_lost_is_acquired_anew(redis_server: LocalRedis) -> None:
    """FLUSHALL does not end the work, and nobody else gets in."""
    with lease(redis_server) as held, redis_server.client() as client:
        client.flushall()
        wait_until(lambda: bool(client.exists(NAME)))
        held.check()
        with pytest.raises(StatetapError), lease(redis_server):
            pass


def test_who_lost_the_lease_to_another_stops(redis_server: LocalRedis) -> None:
    """With a sentence, and without taking the other one's lease away."""
    other = json.dumps({"host": "elsewhere", "pid": 7, "since": "now"})
    with redis_server.client() as client:
        with lease(redis_server) as held:
            client.set(NAME, other)

            def is_lost() -> bool:
                try:
                    held.check()
                except StatetapError as error:
                    return "process 7 on elsewhere" in error.message
                return False

            wait_until(is_lost)
        assert client.get(NAME) == other.encode()
