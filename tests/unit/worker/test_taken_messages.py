"""What a worker held, and how its successor gives it back."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from statetap_contract.transport import alive_name, taken_name
from statetap_local.services import LocalRedis
from statetap_worker.queueing.taken_messages import Pulse, requeue_held, with_own_hash

TAKEN = taken_name("place.w")


def entry(number: int, queue: str = "q") -> str:
    return json.dumps([{"body": f"é{number}", "headers": {}}, "", queue])


def test_what_was_held_is_next_in_its_queue(local_redis: LocalRedis, tmp_path: Path) -> None:
    """Once, before what waits; what another worker holds is not touched."""
    with local_redis.client() as client:
        client.flushall()
        client.lpush("q", "waiting")
        client.hset(TAKEN, mapping={"a": entry(1), "b": entry(2), "c": entry(3, "other")})
        client.zadd(f"index.{TAKEN}", {"a": 1, "b": 2, "c": 3})
        client.hset(taken_name("place.v"), "d", entry(4))
        requeue_held(client, TAKEN, tmp_path / "w.jsonl")
        requeue_held(client, TAKEN, tmp_path / "w.jsonl")
        next_ones: Any = [client.rpop("q"), client.rpop("q")]
        assert {json.loads(message)["body"] for message in next_ones} == {"é1", "é2"}
        assert client.lrange("q", 0, -1) == [b"waiting"]
        assert client.llen("other") == 1
        assert not client.exists(TAKEN, f"index.{TAKEN}")
        assert client.hlen(taken_name("place.v")) == 1
    assert not (tmp_path / "w.jsonl").exists()


@pytest.mark.parametrize("garbage", ["no json", "[]", "7", '[{}, "", ""]', '[{}, "", 3]'])
def test_what_is_no_message_goes_to_the_ledger(
    local_redis: LocalRedis, tmp_path: Path, garbage: str
) -> None:
    """And keeps nothing from going back."""
    with local_redis.client() as client:
        client.flushall()
        client.hset(TAKEN, mapping={"a": garbage, "b": entry(2)})
        requeue_held(client, TAKEN, tmp_path / "w.jsonl")
        assert client.llen("q") == 1
        assert not client.exists(TAKEN)
    (line,) = (tmp_path / "w.jsonl").read_text().splitlines()
    assert json.loads(line)["excerpt"] == garbage


def test_a_worker_at_work_is_seen(local_redis: LocalRedis) -> None:
    """From its start on, for a minute after the last sign of life; without Redis nothing breaks."""
    gone = Pulse("redis://127.0.0.1:1/0", "place.w")
    gone.beat()
    gone.close()
    pulse = Pulse(local_redis.url, "place.w")
    with local_redis.client() as client:
        client.flushall()
        pulse.beat()
        assert 0 < int(client.ttl(alive_name(TAKEN))) <= 60
        client.delete(alive_name(TAKEN))
        pulse.start()
        until = time.monotonic() + 30
        while not client.exists(alive_name(TAKEN)):
            assert time.monotonic() < until
            time.sleep(0.05)
    pulse.close()


def test_only_the_names_of_its_hashes_change() -> None:
    """Everything else is as both ends agreed."""
    settings = {"a": 1, "broker_transport_options": {"b": 2}}
    assert with_own_hash(settings, "place.w") == {
        "a": 1,
        "broker_transport_options": {
            "b": 2,
            "unacked_key": TAKEN,
            "unacked_index_key": f"index.{TAKEN}",
            "unacked_mutex_key": f"mutex.{TAKEN}",
        },
    }
