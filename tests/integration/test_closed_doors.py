"""Redis and Flower without a password, and what Flower shows and does for who has one."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import psutil
import pytest
import redis
from statetap_contract import MissingError
from statetap_local.services import LocalFlower, LocalRedis
from statetap_producer.queueing.broker import Broker

from .bench import Bench
from .test_garbage_messages import await_good_job

_PASSWORD: Final = "fl0wer-word"  # noqa: S105  of this test alone

#: Pages, and calls that would change something.
PAGES: Final = ("/", "/workers", "/tasks", "/broker", "/worker/w", "/api/workers", "/api/tasks")
CALLS: Final = (
    "/api/task/apply/statetap.extract",
    "/api/task/async-apply/statetap.extract",
    "/api/task/send-task/statetap.extract",
    "/api/task/revoke/some-task",
    "/api/worker/shutdown/w",
    "/api/worker/pool/shrink/w",
)


@pytest.mark.parametrize("password", [None, "", "other", "s3cret-wor", "s3cret-word ", "default"])
def test_redis_wants_its_password(local_redis: LocalRedis, password: str | None) -> None:
    """Nothing is told or taken without it."""
    at_once = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    with redis.Redis(port=local_redis.port, password=password, retry=at_once) as client:
        for command in (["PING"], ["LLEN", "q"], ["INFO"], ["CONFIG", "GET", "*"], ["FLUSHALL"]):
            with pytest.raises(redis.RedisError, match=r"(?i)auth|WRONGPASS|invalid"):
                client.execute_command(*command)


def test_worker_and_producer_say_that_it_wants_one(local_redis: LocalRedis, tmp_path: Path) -> None:
    """In a sentence."""
    url = f"redis://127.0.0.1:{local_redis.port}/0"
    with pytest.raises(MissingError, match="password") as caught:
        Broker(url)
    assert caught.value.kind == "redis-password"
    command = [str(Path(sys.executable).parent / "statetap-worker"), f"--redis={url}"]
    ended = subprocess.run(
        [*command, f"--dumps={tmp_path}", f"--runs={tmp_path}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1)
    assert "password" in ended.stderr


def test_redis_listens_on_this_host_alone(local_redis: LocalRedis) -> None:
    """By the project's settings; at the host's other addresses nobody answers."""
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(local_redis.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", local_redis.port)) != 0


@pytest.fixture
def flower(local_redis: LocalRedis, tmp_path: Path) -> Iterator[LocalFlower]:
    service = LocalFlower(
        local_redis, tmp_path / "flower", tmp_path / "flower.log", password=_PASSWORD
    )
    yield service
    service.stop()


def test_flower_wants_its_password(flower: LocalFlower) -> None:
    """Pages and calls, with no password, another one, or another name."""
    for auth in (None, ("statetap", ""), ("statetap", "other"), ("other", _PASSWORD)):
        with httpx.Client(base_url=flower.url, auth=auth, timeout=30) as client:
            for page in PAGES:
                assert (page, client.get(page).status_code) == (page, 401)
            for call in CALLS:
                assert (call, client.post(call, json={"args": []}).status_code) == (call, 401)


def test_who_has_flowers_password_can_look_and_not_meddle(
    bench: Bench, flower: LocalFlower
) -> None:
    """A worker obeys none of its commands, and no page shows the password of Redis."""
    await_good_job(bench)
    with httpx.Client(base_url=flower.url, auth=("statetap", _PASSWORD), timeout=30) as client:

        def is_seen() -> bool:
            workers = client.get("/api/workers", params={"refresh": 1})
            return workers.is_success and any(name.startswith("w@") for name in workers.json())

        bench.wait_until(is_seen)
        (name,) = [name for name in client.get("/api/workers").json() if name.startswith("w@")]
        pages = ({*PAGES} - {"/worker/w"}) | {f"/worker/{name}", "/api/queues/length"}
        shown = "".join(client.get(page).raise_for_status().text for page in pages)
        assert name in shown
        assert bench.redis.password not in shown
        client.post(f"/api/worker/shutdown/{name}")
        client.post(f"/api/worker/pool/shrink/{name}", params={"n": 1})
        client.post("/api/task/revoke/some-task", params={"terminate": "true"})
    assert len(bench.children()) == 2
    await_good_job(bench)
