"""The producer's view of Redis, against a real one."""

from typing import Any

import pytest
from kombu.connection import Connection
from statetap_contract import StatetapError
from statetap_local.services import LocalRedis
from statetap_producer.broker import Broker, QueueCounts


def test_messages_are_counted_where_they_are(redis_server: LocalRedis) -> None:
    """A message that was taken is no longer queued; other queues do not count."""
    connection: Any = Connection(redis_server.url)  # type: ignore[no-untyped-call]
    with connection, connection.channel() as channel:
        for queue in ("mine", "mine", "mine", "other", "other"):
            connection.SimpleQueue(queue, channel=channel).put("x")
        for queue in ("mine", "other"):
            channel.basic_get(queue)
        assert Broker(redis_server.url).counts("mine") == QueueCounts(2, 1)
    assert Broker(redis_server.url).counts("nobody's") == QueueCounts(0, 0)


def test_an_unreadable_message_in_flight_is_not_ours(redis_server: LocalRedis) -> None:
    """What another program put into Celery's hash is left alone."""
    with redis_server.client() as client:
        client.hset("unacked", mapping={"a": "no json", "b": '["x", "y", 1]', "c": "[]"})
    assert Broker(redis_server.url).counts("mine") == QueueCounts(0, 0)


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
                broker.counts("mine")
        finally:
            client.config_set("requirepass", redis_server.password)
    assert caught.value.kind in ("redis-unreachable", "redis-password")
