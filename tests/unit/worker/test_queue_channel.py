"""The gate stands in the transport that kombu takes for Redis."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kombu.transport
import pytest
import redis
from celery import Celery
from statetap_contract import celery_settings
from statetap_local.services import LocalRedis
from statetap_worker.queueing.queue_channel import QueueChannel, QueueTransport, guarded


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """Kombu's choices so far, none; those of this process stay as they are."""
    chosen: dict[Any, Any] = {}
    monkeypatch.setattr(kombu.transport, "_transport_cache", chosen)
    aliases = kombu.transport.TRANSPORT_ALIASES
    for scheme in ("redis", "rediss"):
        monkeypatch.setitem(aliases, scheme, aliases[scheme])
    return chosen


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_connections_are_guarded(transports: dict[Any, Any], scheme: str) -> None:
    """Under the address as it is, so that an encrypted one stays so."""
    assert transports == {}
    settings = guarded(celery_settings(f"{scheme}://127.0.0.1:1/0"), Path("/runs/ledger.jsonl"))
    with Celery("test") as app:
        app.conf.update(settings)
        connection = app.connection_for_read()
        assert isinstance(connection.transport, QueueTransport)
        assert connection.as_uri().startswith(f"{scheme}://")
        assert bool(connection.ssl) == (scheme == "rediss")
        options = connection.transport_options
    assert options["unreadable_ledger"] == "/runs/ledger.jsonl"
    assert options["visibility_timeout"] == 1800


def test_a_choice_that_was_made_before_is_an_error(transports: dict[Any, Any]) -> None:
    """A worker without the gate would work, until the first garbage."""
    transports["redis"] = object
    with pytest.raises(RuntimeError, match="redis://"):
        guarded(celery_settings("redis://127.0.0.1:1/0"), Path("ledger.jsonl"))


def test_a_channel_without_connection_fails_as_one_that_was_lost() -> None:
    """Celery reconnects for that; what kombu raises by itself ends the worker."""
    channel = QueueChannel.__new__(QueueChannel)
    channel.connection = SimpleNamespace(client=None)
    with pytest.raises(redis.ConnectionError):
        channel._connparams()
    channel.connection = None
    with pytest.raises(redis.ConnectionError):
        channel._connparams()
    channel.closed = True  # nothing of it is to be closed at the end


def test_short_commands_have_one_client(
    transports: dict[Any, Any], local_redis: LocalRedis, tmp_path: Path
) -> None:
    """It outlives a lost connection; a pool that was closed and replaced has another."""
    assert transports == {}
    with Celery("test") as app:
        app.conf.update(guarded(celery_settings(local_redis.url), tmp_path / "ledger.jsonl"))
        with app.connection_for_read() as connection:
            channel = connection.channel()
            with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
                assert first is second
            assert first is not channel.client  # which waits for messages
            with local_redis.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            assert first.ping()
            channel._disconnect_pools()
            with channel.conn_or_acquire() as third:
                assert third is not first
                assert third.ping()
            channel.close()


def test_what_cannot_be_acknowledged_keeps_no_place(
    transports: dict[Any, Any],
    local_redis: LocalRedis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the link is cut; Redis is told with the next one that gets through."""
    assert transports == {}
    is_cut, told = True, []

    def remove(tag: str) -> None:
        if is_cut:
            raise redis.TimeoutError("nobody answers")
        told.append(tag)

    with Celery("test") as app:
        app.conf.update(guarded(celery_settings(local_redis.url), tmp_path / "ledger.jsonl"))
        with app.connection_for_read() as connection:
            channel = connection.channel()
            held = channel.qos
            monkeypatch.setattr(held, "_remove", remove)
            held.prefetch_count = 2
            for tag in ("first", "second"):
                held._quick_append(tag, SimpleNamespace())
            assert not held.can_consume()
            held.ack("first")
            assert held.can_consume()
            is_cut = False
            held.ack("second")
            assert sorted(told) == ["first", "second"]
            held.ack("third")
            assert told[2:] == ["third"]
            channel.close()
