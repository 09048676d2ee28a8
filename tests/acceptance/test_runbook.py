"""Every command of docs/runbook.md, typed in the situation that it is for."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
from statetap_contract import CaptureSpec, queue_name
from statetap_local.service import Service, free_port
from statetap_local.services import (
    LocalServer,
    LocalWorker,
)

from .runbook_stage import LAYERS, NUM_PROMPTS, PAGE, PATIENCE_S, Stage, answers

#: Seconds after which a worker is taken for silent.
_SILENT_S: Final = 20


@pytest.fixture
def end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def own_dumps(end: ExitStack) -> Path:
    """A dump folder for a server of the test's own."""
    shared = tempfile.TemporaryDirectory(
        prefix="statetap-test-", dir="/dev/shm", ignore_cleanup_errors=True
    )
    return Path(end.enter_context(shared))


@pytest.fixture
def stage(
    end: ExitStack,
    tmp_path: Path,
    repository: Path,
    tiny_model: Path,
    dumps: Path,
    server: LocalServer,
) -> Stage:
    """With the server that all tests share, which is not to be hurt."""
    stage = Stage(end, tmp_path, repository, tiny_model, dumps)
    stage.serve(server)
    return stage


@pytest.fixture
def lone_stage(
    end: ExitStack, tmp_path: Path, repository: Path, tiny_model: Path, own_dumps: Path
) -> Stage:
    """Without a server."""
    return Stage(end, tmp_path, repository, tiny_model, own_dumps)


def test_no_command_stands_where_no_test_runs_it() -> None:
    """All are in blocks, and all blocks are followed here."""
    assert PAGE.stray == ()
    source = Path(__file__).read_text(encoding="utf-8")
    assert [title for title in PAGE.sections if f'"{title}"' not in source] == []


def test_the_variables_are_those_that_the_tests_set(stage: Stage) -> None:
    """The page names no other at its top, and what it says of them is shell."""
    stage.set(WORKER=0)
    names = set(re.findall(r"(\w+)=", " ".join(PAGE.variables))) - {"STATETAP_REDIS"}
    assert names <= stage.variables.keys()
    stage.type("; ".join(PAGE.variables))


def test_watching(stage: Stage) -> None:
    """``status --watch`` ends with the run; Flower is closed without its password."""
    stage.start_worker()
    stage.plan_and_enqueue()
    port = free_port()  # Flower's own may be taken on this machine
    assert "gpu-7" in stage.follow("Watching", replace={"5555": str(port)})
    assert stage.numbers()["stored"] == NUM_PROMPTS
    stage.wait_for(lambda: answers(f"http://127.0.0.1:{port}/healthcheck"), "Flower")
    assert httpx.get(f"http://127.0.0.1:{port}/api/tasks").status_code == 401
    answer = httpx.get(f"http://127.0.0.1:{port}/api/tasks", auth=("me", "secret"))
    assert answer.status_code == 200


def test_reconcile_beside_a_run(stage: Stage) -> None:
    """It ends by itself when nothing is pending, also where messages were lost."""
    stage.plan_and_enqueue()
    with stage.redis.client() as client:
        assert client.ltrim(queue_name(_spec(stage.run).digest), 0, 3)
    stage.start_worker()
    stage.wait_stored(4)
    stage.follow("Stopping and starting")
    stage.assert_whole()


def test_a_stuck_worker(stage: Stage) -> None:
    """One of its processes is frozen; what it held is extracted after the worker's restart."""
    worker = stage.start_worker()
    # A process that never had a prompt would be given none.
    stage.plan_and_enqueue("before")
    stage.wait_stored(run="before")
    shards = stage.runs / "before/shards"
    assert all(list(shards.glob(f"gpu-7-{slot}-*.h5")) for slot in ("00", "01"))
    frozen = psutil.Process(worker.pid).children()[-1]
    frozen.suspend()
    stage.plan_and_enqueue()
    stage.wait_stored(NUM_PROMPTS - 1)
    printed = stage.follow("A worker is stuck", {"statetap-worker": lambda: _assert_killed(worker)})
    planned = pq.read_table(stage.run / "plan.parquet")["key"].to_pylist()
    assert any(key in printed for key in planned)
    stage.assert_whole()


def test_a_dead_server_and_prompts_that_it_refused(lone_stage: Stage) -> None:
    """It took short prompts only; the next one takes all, when they get another chance."""
    stage = lone_stage
    server = stage.start_server("--context-length=64")
    stage.start_worker()
    stage.plan_and_enqueue()
    stage.wait_for(lambda: stage.numbers()["pending"] == 0, "the end of the run")
    num_dead = stage.numbers()["dead"]
    assert num_dead >= 2
    server.kill()
    stage.follow("A server is dead")
    dead = [
        json.loads(line)["key"]
        for path in (stage.run / "ledger").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    stage.set(KEY=dead[0])
    printed = stage.follow("A prompt that nobody can extract")
    assert dead[0] in printed
    assert "1 dead letter pending again" in printed
    assert f"{num_dead - 1} dead letters pending again" in printed
    stage.assert_whole()


def test_a_full_disk(stage: Stage) -> None:
    """A worker that ended for it goes on where it stopped."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(stage.runs)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small tmpfs cannot be had here: {mounted.stderr.strip()}")
    try:
        worker = stage.start_worker()
        stage.wait_for((stage.runs / ".canaries").is_dir, "the first canary")
        stage.type(f"statetap plan $DATASET --run $RUN --model $MODEL --layers {LAYERS}")
        filler = stage.runs / "filler"
        with filler.open("wb") as stream:
            free = os.statvfs(stage.runs)
            os.posix_fallocate(stream.fileno(), 0, free.f_bavail * free.f_frsize)
        stage.type("statetap enqueue --run $RUN")
        assert worker.wait(PATIENCE_S) == 3
        assert "disk-full" in worker.log.read_text()
        printed = stage.follow("The disk is full", {"statetap-worker": filler.unlink})
        assert "100%" in printed
        stage.assert_whole()
        for service in stage.started:
            service.stop()
    finally:
        subprocess.run(["umount", "--lazy", str(stage.runs)], check=True)


def test_full_shared_memory(stage: Stage) -> None:
    """What is old goes, what is new stays."""
    old, new = stage.dumps / f"{'0' * 32}.safetensors", stage.dumps / f"{'1' * 32}.safetensors"
    for path in (old, new):
        path.write_bytes(b"x")
    an_hour_ago = time.time() - 3600
    os.utime(old, (an_hour_ago, an_hour_ago))
    printed = stage.follow("Shared memory is full")
    assert old.name in printed
    assert (old.exists(), new.exists()) == (False, True)
    new.unlink()


def test_a_lost_redis(stage: Stage) -> None:
    """With all that it knew; the worker finds the next one by itself."""
    stage.start_worker()
    stage.plan_and_enqueue()
    stage.wait_for(lambda: stage.numbers()["stored"] > 0, "a first sample")
    stage.redis.kill()
    conf = stage.folder / "redis/redis.conf"
    for path in conf.parent.iterdir():
        if path != conf:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    stage.set(REDIS_CONF=conf)
    stage.follow(
        "Redis is lost",
        {"statetap reconcile": lambda: stage.wait_for(stage.redis.is_ready, "Redis")},
    )
    stage.assert_whole()


def test_a_lost_machine(stage: Stage) -> None:
    """What it had announced is extracted again by another one."""
    lost = stage.runs.rename(stage.folder / "elsewhere")
    stage.runs.mkdir()
    theirs = LocalWorker(
        stage.server,
        stage.redis,
        dumps=stage.dumps,
        runs=lost,
        log=stage.folder / "lost.log",
        name="gpu-6",
        num_processes=2,
    )
    stage.plan_and_enqueue()
    stage.wait_stored()
    theirs.kill()
    shutil.rmtree(lost)
    (name,) = [f"{worker['name']}@{worker['host']}" for worker in stage.numbers()["announced"]]
    stage.set(LOST=name)

    def is_silent() -> bool:
        (worker,) = stage.numbers()["announced"]
        return bool(worker["heard_s_ago"] > _SILENT_S)

    stage.wait_for(is_silent, "the lost worker's silence")
    assert re.search(rf"enqueued now +{NUM_PROMPTS}\n", stage.follow("A lost machine"))
    stage.start_worker()
    stage.assert_whole()


def test_wrong_layers(lone_stage: Stage) -> None:
    """The wrong queue is empty, and the right run is extracted."""
    stage = lone_stage
    server = stage.start_server()
    worker = stage.start_worker()
    stage.plan_and_enqueue()
    stage.wait_stored()
    queue = queue_name(_spec(stage.run).digest)
    stage.set(QUEUE=queue)

    def leave_one() -> None:
        assert worker.wait(PATIENCE_S) == 0
        server.stop()
        with stage.redis.client() as client:
            client.rpush(queue, "what is left of it")

    printed = stage.follow(
        "The layers were wrong, and it is noticed late",
        {"celery --broker $STATETAP_REDIS purge": leave_one},
    )
    assert queue in printed
    assert LAYERS.replace(",", ", ") in printed
    stage.wait_stored(run="right")
    assert _spec(stage.runs / "right").layers == (1, 3, 5)
    with stage.redis.client() as client:
        assert client.llen(queue) == 0


def test_a_run_that_moves(stage: Stage) -> None:
    """In the middle of it; nothing is extracted twice."""
    worker = stage.start_worker()
    stage.plan_and_enqueue()
    stage.wait_for(lambda: stage.numbers()["stored"] > 0, "a first sample")
    new_runs = stage.folder / "new"
    new_runs.mkdir()
    stage.set(NEW_RUNS=new_runs)

    def finish() -> None:
        assert worker.wait(1) == 0
        shutil.rmtree(stage.runs)
        stage.set(RUNS=new_runs)
        stage.wait_stored()
        stage.started[-1].stop()

    # Whoever started it hears of its end, or it would not be gone for ``tail`` either.
    reap = threading.Thread(target=worker.wait, args=(PATIENCE_S,), daemon=True)
    reap.start()
    printed = stage.follow("A run moves to another disk", {"statetap seal": finish})
    assert "all intact" in printed
    stage.assert_whole(new_runs)


def test_a_server_joins(stage: Stage, own_dumps: Path) -> None:
    """Both store samples of one run."""
    worker = stage.start_worker()
    stage.wait_for(lambda: len(psutil.Process(worker.pid).children()) == 2, "processes")
    stage.set(MORE_DUMPS=own_dumps, MORE_PORT=free_port())
    os.kill(worker.pid, signal.SIGSTOP)  # or it would be done before the other is there
    stage.plan_and_enqueue()
    stage.follow("A server joins in mid-run")
    stage.wait_for(lambda: stage.numbers()["stored"] > 0, "a sample of the new worker")
    os.kill(worker.pid, signal.SIGCONT)
    stage.assert_whole()
    assert list((stage.run / "shards").glob("gpu-8-*.h5"))


def _assert_killed(service: Service) -> None:
    assert service.wait(PATIENCE_S) == -signal.SIGKILL


def _spec(run: Path) -> CaptureSpec:
    return CaptureSpec.from_json(json.loads((run / "run.json").read_text())["spec"])
