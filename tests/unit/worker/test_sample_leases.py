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
from statetap_worker.failing import direct_redis
from statetap_worker.failing.sample_leases import SampleLeases, lease_key
from statetap_worker.lease_holder import LeaseHolder

KEY = "ab" * 16
RUN, SPEC = "a-run", "ef" * 16
HERE, ELSEWHERE = "1" * 32, "2" * 32
HOST = f"{socket.gethostname()}/{Path('/proc/self/ns/pid').stat().st_ino}"


def is_gone(client: redis.Redis) -> bool:
    """Whether the lease ends; nobody waits for Redis to have heard of that."""
    until = time.monotonic() + 10
    while client.exists(lease_key(KEY)) and time.monotonic() < until:
        time.sleep(0.01)
    return not client.exists(lease_key(KEY))


def leases_at(place: str, redis_url: str) -> SampleLeases:
    holder = LeaseHolder.of("w", socket.gethostname(), os.getpid())
    return SampleLeases(redis_url, SPEC, holder, place)


@pytest.fixture
def leases(local_redis: LocalRedis) -> Iterator[SampleLeases]:
    with local_redis.client() as client:
        client.flushall()
    leases = leases_at(HERE, local_redis.url)
    yield leases
    leases.close()


def test_a_lease_lasts_as_long_as_the_work(leases: SampleLeases, local_redis: LocalRedis) -> None:
    """It names who holds it, runs out by itself, and is gone afterwards."""
    with local_redis.client() as client:
        with leases.held(RUN, KEY):
            held = client.get(lease_key(KEY))
            assert held is not None
            assert bytes(held).startswith(f"w@{HOST}:{os.getpid()}:".encode())
            assert 0 < int(client.ttl(lease_key(KEY))) <= 60
        assert is_gone(client)


def test_one_waits_for_the_other(leases: SampleLeases, local_redis: LocalRedis) -> None:
    """Until the lease is given back."""
    with local_redis.client() as client:
        client.set(lease_key(KEY), "w@elsewhere:1:1")
        threading.Timer(0.5, client.delete, [lease_key(KEY)]).start()
        begun = time.monotonic()
        with leases.held(RUN, KEY) as lease:
            assert client.get(lease_key(KEY)) != b"w@elsewhere:1:1"
            assert not lease.is_stored_elsewhere
        assert time.monotonic() - begun > 0.4


def test_who_waits_is_told_that_the_other_has_stored(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """And leaves that as it stands, which is not for ever."""
    others = leases_at(ELSEWHERE, local_redis.url)

    def store() -> None:
        with others.held(RUN, KEY) as lease:
            is_at_it.set()
            time.sleep(0.5)
            lease.is_stored = True

    is_at_it = threading.Event()
    other = threading.Thread(target=store)
    other.start()
    is_at_it.wait()
    # Both are this process, which would be its own predecessor.
    leases._value = b"w@another:1:1"
    with leases.held(RUN, KEY) as lease:
        assert lease.is_stored_elsewhere
    other.join()
    others.close()
    with local_redis.client() as client:
        assert client.get(lease_key(KEY)) == f"stored in {ELSEWHERE}/{RUN}".encode()
        assert 0 < int(client.ttl(lease_key(KEY))) <= 60


@pytest.mark.parametrize(
    "said",
    [
        f"stored in {HERE}/{RUN}".encode(),
        f"stored in {ELSEWHERE}/another-run".encode(),
        b"stored in \xff/\xfe",
    ],
)
def test_what_was_stored_here_or_for_another_run_hinders_nobody(
    leases: SampleLeases, local_redis: LocalRedis, said: bytes
) -> None:
    """This folder's shards are looked into, and may have been deleted meanwhile."""
    with local_redis.client() as client:
        client.set(lease_key(KEY), said)
        with leases.held(RUN, KEY) as lease:
            assert not lease.is_stored_elsewhere
            assert client.get(lease_key(KEY)).startswith(f"w@{HOST}:".encode())
        assert is_gone(client)


def test_it_is_said_over_another_connection_where_one_was_lost(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """Who lost its connection gave its message back, which somebody else has by now."""
    with local_redis.client() as client:
        with leases.held(RUN, KEY) as lease:
            client.client_kill_filter(_type="normal", skipme=True)
            lease.is_stored = True
        until = time.monotonic() + 10
        while client.get(lease_key(KEY)) != f"stored in {HERE}/{RUN}".encode():
            assert time.monotonic() < until
            time.sleep(0.01)


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
        with leases.held(RUN, KEY):
            assert f"w@{HOST}:".encode() in bytes(client.get(lease_key(KEY)))


def test_without_redis_work_goes_on(
    leases: SampleLeases, local_redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases are advice."""
    monkeypatch.setattr(direct_redis, "TIMEOUT_S", 0.2)
    gone = leases_at(HERE, "redis://127.0.0.1:1/0")
    is_done = False
    with gone.held(RUN, KEY):
        is_done = True
    assert is_done
    with local_redis.client() as client, leases.held(RUN, KEY):
        client.flushall()


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_lost_connection_is_made_again(
    leases: SampleLeases, local_redis: LocalRedis, *, is_stored: bool
) -> None:
    """Redis closes it, once with an answer on its way; the next lease is held all the same."""
    with local_redis.client() as client:
        for _ in range(3):
            client.client_kill_filter(_type="normal", skipme=True)
            with leases.held(RUN, KEY) as lease:
                assert client.get(lease_key(KEY)).startswith(f"w@{HOST}:".encode())
                lease.is_stored = is_stored


def test_a_refused_return_is_no_answer_to_the_next_question(
    leases: SampleLeases, local_redis: LocalRedis
) -> None:
    """Redis may not let this user run scripts; the lease then runs out by itself."""
    with local_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "default", "-eval")
        try:
            with leases.held(RUN, KEY):
                pass
            client.set(lease_key(KEY), f"stored in {ELSEWHERE}/{RUN}")
            with leases.held(RUN, KEY) as lease:
                assert lease.is_stored_elsewhere
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
            with leases.held(RUN, KEY):
                pass
            client.client_pause(700, all=True)
            threading.Timer(
                0.2, signal.pthread_kill, [threading.main_thread().ident, signal.SIGUSR2]
            ).start()
            with pytest.raises(Stopped), leases.held(RUN, KEY):
                pass
            client.set(lease_key("cd" * 16), f"stored in {ELSEWHERE}/{RUN}")
            with leases.held(RUN, "cd" * 16) as lease:
                assert lease.is_stored_elsewhere
    finally:
        signal.signal(signal.SIGUSR2, before)
