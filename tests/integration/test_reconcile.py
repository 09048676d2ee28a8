"""Whatever happens to the queue, every sample is stored once: real Redis, worker and commands."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import h5py
import pytest
from celery import Celery
from statetap_contract import TASK_NAME, Job, celery_settings, queue_name
from statetap_local.made_runs import made_run
from statetap_local.service import Service
from statetap_local.services import LocalRedis, redis_program
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.reconcile import ReconcileOutcome, reconcile
from statetap_producer.run.plan import Plan

from .stand_in_server import SPEC, StandInServer

QUEUE = queue_name(SPEC.digest)
NUM_PROMPTS = 150


class Scene:
    """A planned run of short prompts, a worker of two processes, and a Redis of their own."""

    def __init__(self, tmp_path: Path, server: StandInServer) -> None:
        self.server = server
        self.tmp_path = tmp_path
        self.redis = LocalRedis(tmp_path / "redis", tmp_path / "redis.log", "s3cret-word")
        runs = tmp_path / "runs"
        lengths = [3 + 7 * number % 40 for number in range(NUM_PROMPTS)]
        self.run = made_run(runs / "a-run", *lengths, spec=SPEC)
        self.keys = sorted(Plan(self.run.plan_file, NUM_PROMPTS).keys())
        self.worker: Service | None = None
        self.second_redis: Service | None = None

    def restart_redis(self) -> None:
        """Kills Redis with -9 and starts it again, over the same files and on the same port."""
        self.redis.kill()
        command = [str(redis_program()), str(self.tmp_path / "redis" / "redis.conf")]
        self.second_redis = Service("Redis", command, self.redis.log)
        self.second_redis.wait_until(self.redis.is_ready, 15)

    def start_worker(self) -> None:
        command = [
            program("statetap-worker"),
            f"--server={self.server.url}",
            f"--dumps={self.server.dumps}",
            f"--runs={self.run.path.parent}",
            "--name=w",
            "--processes=2",
        ]
        environment = {"STATETAP_REDIS": self.redis.url}
        self.worker = Service("worker", command, self.tmp_path / "worker.log", environment)

    def statetap(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [program("statetap"), *arguments, f"--run={self.run.path}"],
            env=os.environ | {"STATETAP_REDIS": self.redis.url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def reconcile(self) -> ReconcileOutcome:
        return reconcile(self.run, self.redis.url, window=0)

    def num_waiting(self) -> int:
        with self.redis.client() as client:
            num_waiting = client.llen(QUEUE)
        assert isinstance(num_waiting, int)
        return num_waiting

    def stored(self) -> Counter[str]:
        """How often each key stands in the shards, by their index rows."""
        keys: Counter[str] = Counter()
        for path in (self.run.path / "shards").glob("*.h5"):
            with h5py.File(path, locking=False) as shard:
                rows = shard["index"][:]
            keys.update(row["key"].decode() for row in rows if row["state"] == 1)
        return keys

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert self.worker is not None
        self.worker.wait_until(condition, 60)

    def finish(self) -> None:
        """Rounds until nothing is pending, as with ``reconcile --every``; stops the worker."""
        rounds: list[ReconcileOutcome] = []

        def is_over() -> bool:
            rounds.append(self.reconcile())
            return rounds[-1].is_over

        self.wait_until(is_over)
        assert self.worker is not None
        self.worker.stop()
        assert self.stored() == Counter(self.keys)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.stop()
        if self.second_redis is not None:
            self.second_redis.stop()
        self.redis.stop()


def program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with StandInServer(dumps) as server:
        scene = Scene(tmp_path, server)
        yield scene
        scene.close()


def pause_at(scene: Scene, number: int) -> tuple[Event, Event]:
    """The server holds its answers from request ``number`` on; events: it does, it may go on."""
    is_reached, go_on = Event(), Event()
    asked = iter(range(1, 1_000_000))

    def behave(_key: str, _attempt: int) -> None:
        if next(asked) >= number:
            is_reached.set()
            go_on.wait(60)

    scene.server.behaviour = behave
    return is_reached, go_on


def test_a_wiped_redis_costs_no_sample(scene: Scene) -> None:
    """FLUSHALL in the middle of a run, then reconcile: every sample stored exactly once."""
    is_reached, go_on = pause_at(scene, 50)
    assert scene.statetap("enqueue").stdout == "150 prompts queued, 0 already stored, 0 dead\n"
    scene.start_worker()
    assert is_reached.wait(60)
    with scene.redis.client() as client:
        client.flushall()
    go_on.set()
    # What was in flight is stored all the same.
    scene.wait_until(lambda: len(scene.stored()) >= 49)
    ended = scene.statetap("reconcile", "--every=1")
    assert (ended.returncode, ended.stderr) == (0, "")
    *_, last = ended.stdout.splitlines()
    assert "150 of 150 stored, 0 dead, 0 queued, 0 in flight, 0 enqueued" in last
    assert scene.worker is not None
    scene.worker.stop()
    assert scene.stored() == Counter(scene.keys)


def test_a_queue_emptied_by_hand_is_filled_again(scene: Scene) -> None:
    """What workers hold is not queued a second time."""
    is_reached, go_on = pause_at(scene, 30)
    scene.statetap("enqueue")
    scene.start_worker()
    assert is_reached.wait(60)
    with scene.redis.client() as client:
        client.delete(QUEUE)
    outcome = scene.reconcile()
    assert outcome.numbers.in_flight is not None
    assert outcome.numbers.in_flight >= 1
    assert outcome.num_enqueued == outcome.numbers.missing
    # A process that had nothing to do when the queue was emptied may have taken one by now.
    assert 0 <= outcome.num_enqueued - scene.num_waiting() <= 1
    go_on.set()
    scene.finish()
    # None was asked for twice.
    assert set(scene.server.asked.values()) == {1}


def test_duplicates_are_stored_once(scene: Scene) -> None:
    """Each prompt three times in the queue: one sample."""
    inputs = scene.run.read_record().inputs
    texts = inputs.tokenizer_digest, inputs.template_digest
    rows = list(Plan(scene.run.plan_file, NUM_PROMPTS).rows())
    jobs = [Job(row.key, "a-run", SPEC.digest, row.prompt, *texts) for row in rows]
    envelope = Envelope(SPEC.digest)
    with scene.redis.client() as client:
        client.lpush(QUEUE, *(envelope.wrap(job) for job in [*jobs, *jobs, *jobs]))
    scene.start_worker()
    scene.wait_until(lambda: scene.num_waiting() == 0)
    scene.finish()


def test_an_enqueue_that_was_killed_goes_on(scene: Scene) -> None:
    """With -9 while it waits for room; the second one waits until the lease has run out."""
    command = [program("statetap"), "enqueue", f"--run={scene.run.path}", "--window=40"]
    killed = Service(
        "enqueue", command, scene.tmp_path / "enqueue.log", {"STATETAP_REDIS": scene.redis.url}
    )
    killed.wait_until(lambda: scene.num_waiting() == 40, 60)
    killed.kill()
    ended = scene.statetap("enqueue", "--window=0")
    assert ended.stdout == (
        "110 prompts queued, 0 already stored, 0 dead\n40 prompts left out: already queued\n"
    )
    assert scene.num_waiting() == NUM_PROMPTS
    scene.start_worker()
    scene.finish()
    assert set(scene.server.asked.values()) == {1}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_enqueue_that_is_stopped_says_how_to_go_on(
    scene: Scene, number: signal.Signals, code: int
) -> None:
    """One sentence, and the shell's own exit code; the lease is given back."""
    command = [program("statetap"), "enqueue", f"--run={scene.run.path}", "--window=40"]
    log = scene.tmp_path / "enqueue.log"
    stopped = Service("enqueue", command, log, {"STATETAP_REDIS": scene.redis.url})
    stopped.wait_until(lambda: scene.num_waiting() == 40, 60)
    os.kill(stopped.pid, number)
    assert stopped.wait(30) == code
    assert log.read_text() == (
        "statetap: stopped with 40 prompts queued; to go on, run: statetap enqueue "
        f"--run {scene.run.path}\n"
    )
    assert scene.reconcile().num_enqueued == NUM_PROMPTS - 40


def test_two_enqueues_at_once_queue_everything_once(scene: Scene) -> None:
    """The second one ends with a sentence that names the first."""
    command = [program("statetap"), "enqueue", f"--run={scene.run.path}", "--window=40"]
    first = Service(
        "enqueue", command, scene.tmp_path / "enqueue.log", {"STATETAP_REDIS": scene.redis.url}
    )
    first.wait_until(lambda: scene.num_waiting() == 40, 60)
    second = scene.statetap("enqueue")
    assert second.returncode == 3
    assert f"is being filled by process {first.pid} on " in second.stderr
    round_meanwhile = scene.statetap("reconcile")
    assert round_meanwhile.returncode == 3
    assert f"is being filled by process {first.pid} on " in round_meanwhile.stderr
    scene.start_worker()
    assert first.wait(60) == 0
    scene.finish()
    assert set(scene.server.asked.values()) == {1}


def test_a_redis_that_was_started_again_costs_no_sample(scene: Scene) -> None:
    """Killed with -9 in the middle of a run, with its append-only file on."""
    is_reached, go_on = pause_at(scene, 50)
    scene.statetap("enqueue")
    scene.start_worker()
    assert is_reached.wait(60)
    scene.restart_redis()
    go_on.set()
    scene.finish()


def test_flower_sees_every_task(scene: Scene) -> None:
    """From the worker's events: name, words for its arguments, worker and end of each."""
    app: Any = Celery(set_as_current=False)
    app.conf.update(celery_settings(scene.redis.url))
    state = app.events.State()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": state.event})
        with receiver.consumer_context(wakeup=False) as (events, *_):
            scene.statetap("enqueue")
            scene.start_worker()
            for _ in range(10 * NUM_PROMPTS):
                events.drain_events(timeout=60)
                tasks = state.tasks
                if len(tasks) == NUM_PROMPTS and all(task.ready for task in tasks.values()):
                    break
    app.close()
    assert sorted(tasks) == scene.keys
    for key, task in tasks.items():
        assert (task.name, task.state) == (TASK_NAME, "SUCCESS")
        assert task.args.startswith(f"{key}, ")
        assert task.args.endswith(" tokens, run a-run, attempt 1")
        assert task.worker.hostname.startswith("w@")
