"""A real server that wants a key: who has it is served, and nobody can read it on the host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
import psutil
import pytest
from statetap_local.services import LocalRedis, LocalServer, LocalWorker
from statetap_store import RunScanner
from statetap_worker.asking.server import Server

from .capturing import PATIENCE_S, job_of, prompts_of, request_body
from .soak_prompts import write_prompts

KEY: Final = "a-k3y-that-nobody-else-has"

#: What a stranger may try, with a body or without.
DOORS: Final = (
    ("GET", "/server_info"),
    ("GET", "/get_server_info"),
    ("GET", "/model_info"),
    ("GET", "/v1/models"),
    ("POST", "/generate"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/flush_cache"),
    ("POST", "/update_weights_from_disk"),
    ("GET", "/no_such_door"),
)

#: Open to load balancers; they tell nothing and compute at most one token.
OPEN_DOORS: Final = ("/health", "/ready")


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=["--max-total-tokens=16384"],
        environment={"STATETAP_API_KEY": KEY},
    )
    yield service
    service.stop()


@pytest.mark.parametrize(
    "shown",
    [
        {},
        {"Authorization": "Bearer other"},
        {"Authorization": KEY},
        # An address that is put together from this one has the path of an open door.
        {"Host": "127.0.0.1/health?"},
    ],
)
def test_strangers_are_refused(server: LocalServer, dumps: Path, shown: dict[str, str]) -> None:
    """Whatever they ask for, without a key, with another one, or in another form."""
    (ids,) = prompts_of([50], seed=1)
    body = request_body(job_of("ab" * 16, ids))
    with httpx.Client(base_url=server.url, headers=shown, timeout=PATIENCE_S) as client:
        for method, path in DOORS:
            answer = client.request(method, path, json=body if method == "POST" else None)
            assert (path, answer.status_code) == (path, 401)
        for path in OPEN_DOORS:
            assert client.get(path).status_code == 200
    assert not list(dumps.glob("*.safetensors"))
    assert "keeps out nobody" not in server.log.read_text()


def test_it_is_reached_from_this_host_alone(server: LocalServer) -> None:
    """Until ``--host`` says otherwise."""
    listening = {
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert {address.ip for address in listening if address.port == server.port} == {"127.0.0.1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_the_host_learns_nothing(server: LocalServer, dumps: Path) -> None:
    """Neither dumps nor the key can be read, and nothing can be put among the dumps."""
    client = Server(server.url, api_key=KEY)
    (ids,) = prompts_of([50], seed=2)
    receipt = client.capture(job_of(client.handshake().spec.digest, ids))
    root = psutil.Process(server.pid)
    environments = [
        Path(f"/proc/{process.pid}/environ") for process in (root, *root.children(recursive=True))
    ]
    assert all(KEY in path.read_bytes().decode() for path in environments)
    attempts = [
        f"ls {dumps}",
        f"cat {receipt.path} {dumps}/.lock",
        f"touch {dumps}/{'ef' * 16}.safetensors",
        f"ln -s /dev/null {dumps}/{'ef' * 16}.safetensors",
        f"mv {dumps} {dumps}.moved",
        *(f"cat {path}" for path in environments),
    ]
    for attempt in attempts:
        ended = subprocess.run(
            ["/bin/sh", "-c", attempt],
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (attempt, ended.returncode != 0, ended.stdout) == (attempt, True, "")
        assert "denied" in ended.stderr or "not permitted" in ended.stderr


def test_a_run_goes_through_with_the_key(
    server: LocalServer,
    dumps: Path,
    local_redis: LocalRedis,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Plan, measured rate, worker; and the key stands in no log and on no command line."""
    run = tmp_path / "runs" / "a-run"
    run.parent.mkdir()
    write_prompts(tmp_path / "prompts.jsonl", 20, seed=1)
    planning = (
        *("plan", tmp_path / "prompts.jsonl", "--run", run),
        *("--model", tiny_model, "--server", server.url),
    )
    refused = statetap(*planning)
    assert refused.returncode == 3
    assert "STATETAP_API_KEY" in refused.stderr
    monkeypatch.setenv("STATETAP_API_KEY", KEY)
    monkeypatch.setenv("STATETAP_REDIS", local_redis.url)
    with local_redis.client() as client:
        client.flushall()  # what other tests left
    assert statetap(*planning).returncode == 0
    assert statetap("enqueue", "--run", run).returncode == 0
    worker = LocalWorker(
        server,
        local_redis,
        dumps=dumps,
        runs=run.parent,
        log=tmp_path / "worker.log",
        arguments=["--shard-gib=0.1", "--log-level=info"],
    )
    try:
        worker.wait_until(lambda: num_stored(run) == 20, PATIENCE_S)
        assert not [line for line in command_lines() if KEY in line]
    finally:
        worker.stop()
    assert statetap("verify", run).returncode == 0
    for log in (server.log, worker.log):
        assert KEY not in log.read_text()
    # It was there to be hidden: SGLang writes all of its arguments into its log.
    assert "'api_key': '<key>'" in server.log.read_text()
    assert KEY not in "".join(
        path.read_text(errors="replace") for path in run.rglob("*") if path.is_file()
    )


def test_a_worker_without_the_key_ends_at_once(
    server: LocalServer, dumps: Path, local_redis: LocalRedis, tmp_path: Path
) -> None:
    """It does not wait for ten minutes as it does for a server that loads its model."""
    worker = LocalWorker(
        server, local_redis, dumps=dumps, runs=tmp_path, log=tmp_path / "worker.log"
    )
    try:
        assert worker.wait(60) == 3
    finally:
        worker.stop()
    *_, last = worker.log.read_text().splitlines()
    assert last == (
        f"statetap-worker: the server at {server.url} wants another API key; put its key into "
        "STATETAP_API_KEY"
    )


def statetap(*arguments: object) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).parent / "statetap"
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


def num_stored(run: Path) -> int:
    if not (run / "shards").is_dir():
        return 0
    scanner = RunScanner(run / "shards")
    scanner.refresh()
    return scanner.num_samples


def command_lines() -> Iterator[str]:
    """Of all processes of this machine, as ``ps`` shows them to everyone."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # ended meanwhile
            yield path.read_bytes().decode(errors="replace")
