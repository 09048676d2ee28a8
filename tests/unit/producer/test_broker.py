"""The producer's view of Redis, against a real one."""

import time

import pytest
from statetap_contract import StatetapError
from statetap_contract.transport import alive_name, taken_index_name, taken_name
from statetap_local.services import LocalRedis
from statetap_producer.queueing.broker import Broker


def test_messages_arrive_all_or_none(redis_server: LocalRedis) -> None:
    """In order, counted; a Redis without memory takes none of them."""
    with Broker(redis_server.url) as broker, redis_server.client() as client:
        broker.push("mine", [b"1", b"2", b"3"])
        assert client.lrange("mine", 0, -1) == [b"3", b"2", b"1"]
        assert (broker.num_waiting("mine"), broker.num_waiting("other")) == (3, 0)
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StatetapError, match="no memory left") as caught:
                broker.push("mine", [b"4", b"5"])
        finally:
            client.config_set("maxmemory", 0)
        assert (caught.value.kind, caught.value.exit_code) == ("redis-full", 3)
        assert broker.num_waiting("mine") == 3


def test_memory_is_what_redis_says(redis_server: LocalRedis) -> None:
    """It grows with what is pushed; its limit is Redis's own."""
    with Broker(redis_server.url) as broker, redis_server.client() as client:
        before = broker.memory()
        assert before.limit_bytes == 0
        broker.push("mine", [bytes(1_000_000)])
        assert 1_000_000 <= broker.memory().used_bytes - before.used_bytes < 10_000_000
        client.config_set("maxmemory", 50_000_000)
        try:
            assert broker.memory().limit_bytes == 50_000_000
        finally:
            client.config_set("maxmemory", 0)


def test_what_lost_workers_held_is_forgotten(redis_server: LocalRedis) -> None:
    """After a day; what a worker at work holds stays however long it has held it."""
    now = time.time()
    with Broker(redis_server.url) as broker, redis_server.client() as client:
        for name, age_s, is_alive in (
            ("lost", 90_000, False),
            ("gone", 3_600, False),
            ("busy", 90_000, True),
        ):
            client.hset(taken_name(name), mapping={"old": "x", "new": "y"})
            client.zadd(taken_index_name(taken_name(name)), {"old": 1, "new": now - age_s})
            if is_alive:
                client.set(alive_name(taken_name(name)), "")
        broker.forget_lost_workers()
        assert not client.exists(taken_name("lost"), taken_index_name(taken_name("lost")))
        assert client.hlen(taken_name("gone")) == client.hlen(taken_name("busy")) == 2
        assert broker.taken_hashes() == [taken_name("busy").encode()]
        assert broker.num_taken() == 2


def test_another_program_in_the_same_database_is_named(redis_server: LocalRedis) -> None:
    """A name that statetap uses holds something else: no outage, and no wrong address."""
    with Broker(redis_server.url) as broker, redis_server.client() as client:
        client.set("mine", "x")
        with pytest.raises(StatetapError, match="a database of its own") as caught:
            broker.num_waiting("mine")
    assert (caught.value.kind, caught.value.exit_code) == ("redis-foreign-key", 3)


@pytest.mark.parametrize(
    ("url", "kind", "exit_code"),
    [
        ("redis://:s3cret-word@127.0.0.1:1/0", "redis-unreachable", 3),
        ("redis://:s3cret-word@no-such-host.invalid/0", "redis-unreachable", 3),
        ("redis://:s3cret-word@127.0.0.1:{port}/99", "redis-unreachable", 3),
        ("redis://:s3cret-w0rd@127.0.0.1:{port}/0", "redis-password", 3),
        ("redis://127.0.0.1:{port}/0", "redis-password", 3),
        ("http://:s3cret-word@127.0.0.1:{port}/0", "redis-url", 2),
        ("redis://:s3cret-word@127.0.0.1:port/0", "redis-url", 2),
        ("redis://:s3cret-word@127.0.0.1:{port}/zero", "redis-url", 2),
        ("redis://[:s3cret-word@", "redis-url", 2),
        ("redis://:s3cret-word@127.0.0.1:{port}/0?colour=red", "redis-url", 2),
        ("redis://:s3cret-word@127.0.0.1:{port}/0?socket_timeout=x", "redis-url", 2),
        ("", "redis-url", 2),
    ],
)
def test_a_redis_that_cannot_be_used_is_named_without_its_password(
    redis_server: LocalRedis, url: str, kind: str, exit_code: int
) -> None:
    """Each way to fail has its own kind, and no sentence holds the password."""
    with pytest.raises(StatetapError, match="Redis") as caught:
        Broker(url.format(port=redis_server.port))
    assert (caught.value.kind, caught.value.exit_code) == (kind, exit_code)
    assert "s3cret" not in caught.value.message


def test_a_redis_that_goes_away_is_named(redis_server: LocalRedis) -> None:
    """A connection that was good is no promise."""
    broker = Broker(redis_server.url)
    with redis_server.client() as client:
        client.config_set("requirepass", "another")
        client.client_kill_filter(_type="normal", skipme=True)
        try:
            with pytest.raises(StatetapError) as caught:
                broker.num_waiting("mine")
        finally:
            client.config_set("requirepass", redis_server.password)
    assert caught.value.kind in ("redis-unreachable", "redis-password")
