"""A server whose states drift gets no more work: real workers, real Redis, a stand-in server."""

import signal
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Event

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from celery import Celery
from statetap_contract import (
    TASK_NAME,
    Job,
    Prompt,
    StopError,
    celery_settings,
    dump_name,
    queue_name,
)
from statetap_local.service import Service
from statetap_local.services import LocalRedis
from statetap_store import RunReader, RunScanner, SampleTable
from statetap_worker.process import WorkerProcess
from statetap_worker.settings import WorkerSettings

from .stand_in_server import SPEC, StandInServer, states_of

RUN = "a-run"


def drifted(token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """Every row a hundredth longer: count, ids, checksum and all else are right."""
    return states_of(token_ids) * np.float32(1.01)


class Scene:
    """A folder of runs and a queue, for workers that a test starts."""

    def __init__(self, tmp_path: Path, local_redis: LocalRedis, server: StandInServer) -> None:
        self.server = server
        self.runs = tmp_path / "runs"
        self.runs.mkdir()
        self.record = self.runs / ".canaries" / dump_name(SPEC.digest)
        self.workers: list[Service] = []
        self._redis = local_redis
        self._folder = tmp_path
        self._app = Celery("test")
        self._app.conf.update(celery_settings(local_redis.url))

    def start_worker(self, name: str = "w", server: StandInServer | None = None) -> Service:
        server = server or self.server
        command = [
            str(Path(sys.executable).parent / "statetap-worker"),
            f"--server={server.url}",
            f"--dumps={server.dumps}",
            f"--runs={self.runs}",
            f"--name={name}",
            "--processes=1",
            "--shard-gib=0.01",
        ]
        log = self._folder / f"{name}-{len(self.workers)}.log"
        environment = {"STATETAP_REDIS": self._redis.url}
        self.workers.append(Service("worker", command, log, environment))
        return self.workers[-1]

    def send_jobs(self, *numbers: int) -> set[str]:
        """Returns their keys."""
        keys = set()
        for number in numbers:
            job = job_of(number)
            self._app.send_task(TASK_NAME, args=[job.to_message()], queue=queue_name(SPEC.digest))
            keys.add(job.key)
        return keys

    def stored_keys(self) -> set[str]:
        folder = self.runs / RUN / "shards"
        if not folder.is_dir():
            return set()
        scanner = RunScanner(folder)
        scanner.refresh()
        return set(scanner.keys)

    def num_messages(self) -> int:
        """Messages waiting for a worker or held by one."""
        return self._redis.num_messages(queue_name(SPEC.digest))

    def work_off(self, worker: Service, keys: set[str]) -> None:
        """Waits until exactly these samples are stored and the queue is empty."""
        worker.wait_until(lambda: self.stored_keys() == keys and not self.num_messages(), 60)


@pytest.fixture
def scene(tmp_path: Path, local_redis: LocalRedis) -> Iterator[Scene]:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with local_redis.client() as client:
        client.flushall()
    with StandInServer(dumps) as server:
        scene = Scene(tmp_path, local_redis, server)
        yield scene
        for worker in scene.workers:
            worker.stop()


def test_a_server_that_drifted_gets_no_work(scene: Scene) -> None:
    """From a worker that starts: code 3, a sentence, and every message stays in the queue."""
    stored = scene.send_jobs(1)
    worker = scene.start_worker()
    scene.work_off(worker, stored)
    worker.stop()
    asked = dict(scene.server.asked)
    scene.server.states_of = drifted
    scene.send_jobs(2, 3, 4)
    worker = scene.start_worker()
    assert worker.wait(60) == 3
    assert scene.num_messages() == 3
    assert scene.server.asked == asked
    (line,) = worker.log.read_text().splitlines()
    assert line.startswith(f"statetap-worker: {scene.server.url} computes the canary prompt")
    assert str(scene.record) in line
    assert list(scene.server.dumps.iterdir()) == []


def test_deleting_the_record_accepts_the_drift(scene: Scene) -> None:
    """As the sentence says."""
    scene.start_worker().wait_until(scene.record.exists, 60)
    scene.workers[0].stop()
    scene.server.states_of = drifted
    scene.record.unlink()
    keys = scene.send_jobs(1)
    scene.work_off(scene.start_worker(), keys)


def test_a_drift_after_an_outage_stops_the_worker(scene: Scene) -> None:
    """The message of the job that met the outage goes back."""
    stored = scene.send_jobs(1)
    worker = scene.start_worker()
    scene.work_off(worker, stored)
    scene.server.behaviour = lambda _key, _attempt: (503, {"message": "ending"})
    (key,) = scene.send_jobs(2)
    worker.wait_until(lambda: key in scene.server.asked, 60)
    scene.server.states_of = drifted
    scene.server.behaviour = lambda _key, _attempt: None
    assert worker.wait(60) == 3
    assert "canary-drift" in worker.log.read_text()
    assert scene.num_messages() == 1
    assert scene.stored_keys() == stored


def test_a_drift_is_noticed_by_a_new_child(scene: Scene) -> None:
    """Whatever its predecessor knew of the server: before its first job."""
    stored = scene.send_jobs(1)
    worker = scene.start_worker()
    scene.work_off(worker, stored)
    scene.server.states_of = drifted
    for child in psutil.Process(worker.pid).children():
        child.send_signal(signal.SIGKILL)
    (key,) = scene.send_jobs(2)
    assert worker.wait(60) == 3
    assert key not in scene.server.asked
    assert scene.num_messages() == 1
    assert scene.stored_keys() == stored


def test_of_two_workers_that_race_one_makes_the_record(scene: Scene, tmp_path: Path) -> None:
    """Their servers compute different states, and both have answered before there is a record."""
    dumps = tmp_path / "other-dumps"
    dumps.mkdir()
    both_answer = Barrier(2, timeout=60)

    def wait_for_both(_key: str, attempt: int) -> None:
        if attempt == 1:
            both_answer.wait()

    with ExitStack() as stack:
        other = stack.enter_context(StandInServer(dumps))
        other.states_of = drifted
        servers = {"w1": scene.server, "w2": other}
        for server in servers.values():
            server.canary_behaviour = wait_for_both
        workers = {name: scene.start_worker(name, server) for name, server in servers.items()}
        wait_for(lambda: any(not worker.is_running for worker in workers.values()))
        (ended,) = [name for name, worker in workers.items() if not worker.is_running]
        assert workers[ended].wait(0) == 3
        (left,) = workers.keys() - {ended}
        keys = scene.send_jobs(1, 2, 3)
        scene.work_off(workers[left], keys)
        workers[left].stop()
    table = SampleTable.scan(*(scene.runs / RUN / "shards").glob("*.h5"))
    with RunReader(table) as reader:
        for entry in table:
            sample = reader.read(entry)
            right = servers[left].states_of(sample.token_ids)
            np.testing.assert_array_equal(sample.states, right)
    assert [file.name for file in scene.record.parent.iterdir()] == [scene.record.name]


def test_a_busy_server_is_waited_for(scene: Scene) -> None:
    """No canary for some seconds, in parent and child, is no drift."""
    scene.server.canary_behaviour = lambda _key, attempt: (
        (503, {"message": "busy"}) if attempt in (1, 2, 4, 5) else None
    )
    keys = scene.send_jobs(1)
    scene.work_off(scene.start_worker(), keys)
    assert scene.server.num_canaries == 6


def test_a_server_of_wrong_dumps_gets_no_work(scene: Scene) -> None:
    """Not even one prompt is sent to it."""
    scene.server.states_of = lambda token_ids: 0 * states_of(token_ids)
    scene.send_jobs(1)
    worker = scene.start_worker()
    assert worker.wait(60) == 3
    assert "even the canary prompt" in worker.log.read_text()
    assert scene.server.asked == {}
    assert scene.num_messages() == 1
    assert not scene.record.exists()


def test_a_canary_of_a_killed_worker_does_not_stay(scene: Scene) -> None:
    """Its dump, published after its end, is gone when the next worker has started."""
    is_asked, go_on = Event(), Event()

    def hold_first(_key: str, attempt: int) -> None:
        if attempt == 1:
            is_asked.set()
            go_on.wait(60)

    scene.server.canary_behaviour = hold_first
    worker = scene.start_worker()
    assert is_asked.wait(60)
    worker.kill()
    go_on.set()
    wait_for(lambda: any(scene.server.dumps.glob("*.safetensors")))
    keys = scene.send_jobs(1)
    scene.work_off(scene.start_worker(), keys)
    scene.workers[-1].stop()
    assert list(scene.server.dumps.iterdir()) == []


def test_a_drift_during_a_rest_is_noticed(
    scene: Scene, local_redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was started anew between two jobs looks like the one before."""
    server = scene.server
    settings = WorkerSettings(
        server.url, local_redis.url, server.dumps, scene.runs, "w", 1, shard_bytes=1 << 24
    )
    handler = signal.getsignal(signal.SIGUSR2)
    process = WorkerProcess(settings, server.capture(), "an-id", 1, None)
    try:
        for number in (1, 2):
            process.extract(job_of(number), is_suspect=False)
        assert server.num_canaries == 1
        monkeypatch.setattr("statetap_worker.process._SHORTEST_RESTART_S", 0)
        process.extract(job_of(3), is_suspect=False)
        server.states_of = drifted
        with pytest.raises(StopError) as caught:
            process.extract(job_of(4), is_suspect=False)
        assert caught.value.kind == "canary-drift"
        assert job_of(4).key not in server.asked
    finally:
        process.close()
        signal.signal(signal.SIGUSR2, handler)


def job_of(number: int) -> Job:
    """A prompt of 20 tokens, another one for each number."""
    ids = array("i", [(7 * number + i) % 1000 for i in range(20)])
    return Job.of(RUN, SPEC.digest, Prompt(ids, ((0, 1),)))


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits a minute at most."""
    is_over = Event()
    for _ in range(600):
        if condition():
            return
        is_over.wait(0.1)
    pytest.fail("waited in vain")
