"""Leases of samples, in a real Redis."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from statetap_local.services import LocalRedis
from statetap_worker.failing import sample_leases
from statetap_worker.failing.sample_leases import SampleLeases, lease_key
from statetap_worker.lease_holder import LeaseHolder

KEY = "ab" * 16
HOST = f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def never() -> bool:
    return False


def is_gone(client: redis.Redis) -> bool:
    """Whether the lease ends; nobody waits for Redis to have heard of that."""
    until = time.monotonic() + 10
    while client.exists(lease_key(KEY)) and time.monotonic() < until:
        time.sleep(0.01)
    return not client.exists(lease_key(KEY))


@pytest.fixture
def leases(local_redis: LocalRedis) -> Iterator[SampleLeases]:
    with local_redis.client() as client:
        client.flushall()
    leases = SampleLeases(local_redis.url, LeaseHolder.of("w", socket.gethostname(), os.getpid()))
    yield leases
    leases.close()


def test_a_lease_lasts_as_long_as_the_work(leases: SampleLeases, local_redis: LocalRedis) -> None:
    """It names who holds it, runs out by itself, and is gone afterwards."""
    with local_redis.client() as client:
        with leases.held(KEY, never):
            held = client.get(lease_key(KEY))
            assert held is not None
            assert bytes(held).startswith(f"w@{HOST}:{os.getpid()}:".encode())
            assert 0 < int(client.ttl(lease_key(KEY))) <= 60
        assert is_gone(client)


def test_one_waits_for_the_other(leases: SampleLeases, local_redis: LocalRedis) -> None:
    """Until the sample is stored, or the lease given back; the other's lease stays its own."""
    with local_redis.client() as client:
        client.set(lease_key(KEY), "w@elsewhere:1:1")
        looks = []

        def is_stored() -> bool:
            looks.append(1)
            return len(looks) == 3

        with leases.held(KEY, is_stored):
            assert client.get(lease_key(KEY)) == b"w@elsewhere:1:1"
        assert client.get(lease_key(KEY)) == b"w@elsewhere:1:1"
        assert len(looks) == 3
        threading.Timer(0.5, client.delete, [lease_key(KEY)]).start()
        begun = time.monotonic()
        with leases.held(KEY, never):
            assert client.get(lease_key(KEY)) != b"w@elsewhere:1:1"
        assert time.monotonic() - begun > 0.4


def test_the_lease_of_a_dead_process_of_this_host_is_taken_over(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """At once, whichever worker it was of."""
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    with local_redis.client() as client:
        client.set(lease_key(KEY), f"other@{HOST}:{pid}:77")
        with leases.held(KEY, never):
            assert f"w@{HOST}:".encode() in bytes(client.get(lease_key(KEY)))


def test_without_redis_work_goes_on(
    leases: SampleLeases, local_redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are advice."""
    monkeypatch.setattr(sample_leases, "_REDIS_TIMEOUT_S", 0.2)
    gone = SampleLeases(
        "redis://127.0.0.1:1/0", LeaseHolder.of("w", socket.gethostname(), os.getpid())
    )
    is_done = False
    with gone.held(KEY, never):
        is_done = True
    assert is_done
    with local_redis.client() as client, leases.held(KEY, never):
        client.flushall()


def test_a_lost_connection_is_made_again(leases: SampleLeases, local_redis: LocalRedis) -> None:
    """Redis closes it for good; the next lease but one is held at the latest."""
    with local_redis.client() as client:
        with leases.held(KEY, never):
            pass
        client.client_kill_filter(_type="normal", skipme=True)
        with leases.held(KEY, never):
            pass
        with leases.held(KEY, never):
            assert client.exists(lease_key(KEY))
        assert is_gone(client)


def test_a_refused_return_is_no_answer_to_the_next_question(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """Redis may not let this user run scripts; the lease then runs out by itself."""
    with local_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-eval")
        try:
            with leases.held(KEY, never):
                pass
            client.set(lease_key(KEY), "somebody@elsewhere:1:2")
            looks = iter((False, False, True))
            with leases.held(KEY, lambda: next(looks)):
                assert client.get(lease_key(KEY)) == b"somebody@elsewhere:1:2"
            assert not list(looks)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+eval")


def test_an_interrupted_question_leaves_no_answer_behind(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """It would be taken for that of the next one."""

    class Stopped(BaseException):
        pass

    def stop(_number: int, _frame: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGUSR2, stop)
    try:
        with local_redis.client() as client:
            with leases.held(KEY, never):
                pass
            client.client_pause(700, all=True)
            threading.Timer(
                0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGUSR2]
            ).start()
            with pytest.raises(Stopped), leases.held(KEY, never):
                pass
            client.set(lease_key("cd" * 16), "w@elsewhere:1:1")
            looks = []

            def is_stored() -> bool:
                looks.append(1)
                return True

            with leases.held("cd" * 16, is_stored):
                assert client.get(lease_key("cd" * 16)) == b"w@elsewhere:1:1"
            assert looks
    finally:
        signal.signal(signal.SIGUSR2, before)
