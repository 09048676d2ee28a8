"""Real workers whose disks the producer cannot see, and a real Redis that forgets."""

import signal
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from time import sleep

import h5py
import psutil
import pytest
from celery import Celery
from statetap_contract import TASK_NAME, Job, Prompt, celery_settings, queue_name
from statetap_contract.announcement import PLACE_FILE, read_place, serving_key, speaker_key
from statetap_contract.transport import TAKEN_PATTERN
from statetap_local.made_runs import made_run
from statetap_local.service import Service
from statetap_local.services import LocalRedis
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.enqueue import enqueue
from statetap_producer.queueing.reconcile import reconcile
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import PlanCounts, PlanInputs, RunRecord
from statetap_store import RunScanner

from .stand_in_server import SPEC, StandInServer

RUN = "a-run"


class Machines:
    """A producer and two workers, each with a disk of its own; they share Redis and a server."""

    def __init__(self, tmp_path: Path, local_redis: LocalRedis, server: StandInServer) -> None:
        self.tmp_path = tmp_path
        self.redis = local_redis
        self.server = server
        self.run = RunFolder(tmp_path / "producer" / RUN)
        self.run.path.mkdir(parents=True)
        inputs = PlanInputs(SPEC, "chats", "ab" * 16, "", "", PromptRules(10_000))
        counts = PlanCounts(0, 0, 0, 0, 0, 0, 0, 0, 0, ())
        self.run.write_record(RunRecord(RUN, inputs, counts, ()))
        self.workers = {name: self.start_worker(name) for name in ("first", "second")}
        self._app = Celery("test")
        self._app.conf.update(celery_settings(local_redis.url))

    def start_worker(self, name: str) -> Service:
        runs = self.tmp_path / name
        runs.mkdir(exist_ok=True)
        command = [
            str(Path(sys.executable).parent / "statetap-worker"),
            f"--server={self.server.url}",
            f"--dumps={self.server.dumps}",
            f"--runs={runs}",
            f"--name={name}",
            "--processes=2",
            "--shard-gib=0.01",
        ]
        log = self.tmp_path / f"{name}.log"
        return Service(f"worker {name}", command, log, {"STATETAP_REDIS": self.redis.url})

    def send(self, numbers: range) -> set[str]:
        jobs = [job_of(number) for number in numbers]
        for job in jobs:
            self._app.send_task(TASK_NAME, args=[job.to_message()], queue=queue_name(SPEC.digest))
        return {job.key for job in jobs}

    def stored(self, name: str) -> set[str]:
        """Keys on one worker's disk."""
        scanner = RunScanner(self.tmp_path / name / RUN / "shards")
        scanner.refresh()
        return set(scanner.keys)

    def look(self) -> Announcements:
        """What a producer that starts now makes of it."""
        with Broker(self.redis.url) as broker:
            announcements = Announcements(self.run, broker)
            announcements.refresh(set())
        return announcements

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self.workers["first"].wait_until(condition, 60)

    def lease(self, name: str) -> object:
        """Who speaks for one worker's disk."""
        with self.redis.client() as client:
            return client.get(speaker_key(read_place(self.tmp_path / name)))

    def is_spoken_for(self, name: str) -> bool:
        return bool((self.tmp_path / name / PLACE_FILE).exists() and self.lease(name))

    def num_waiting(self) -> int:
        """Messages that no worker has taken."""
        with self.redis.client() as client:
            return int(client.llen(queue_name(SPEC.digest)))

    def num_serving(self) -> int:
        """Folders whose workers listen to the queue, as far as Redis knows."""
        with self.redis.client() as client:
            return int(client.scard(serving_key(SPEC.digest)))

    def holdings(self) -> Counter[str]:
        """How often each key stands on both disks, by the index rows of their shards."""
        keys: Counter[str] = Counter()
        for name in self.workers:
            for path in (self.tmp_path / name / RUN / "shards").glob("*.h5"):
                with h5py.File(path, locking=False) as shard:
                    rows = shard["index"][:]
                keys.update(row["key"].decode() for row in rows if row["state"] == 1)
        return keys

    def planned(self, num_prompts: int) -> tuple[RunFolder, set[str]]:
        """The run with a plan, and its keys."""
        lengths = [3 + number % 40 for number in range(num_prompts)]
        run = made_run(self.tmp_path / "planned" / RUN, *lengths, spec=SPEC)
        return run, Plan(run.plan_file, num_prompts).keys()

    def finish(self, run: RunFolder, keys: set[str]) -> None:
        """Rounds until nothing is pending: every sample is stored once."""
        self.wait_until(lambda: reconcile(run, self.redis.url, window=0).is_over)
        for worker in self.workers.values():
            worker.stop()
        assert self.holdings() == Counter(keys)


def job_of(number: int) -> Job:
    ids = array("i", [(7 * number + i) % 1000 for i in range(1 + number % 50)])
    return Job.of(RUN, SPEC.digest, Prompt(ids, ((0, 1),)), "ab" * 16, "cd" * 16)


@pytest.fixture
def machines(tmp_path: Path, local_redis: LocalRedis) -> Iterator[Machines]:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with local_redis.client() as client:
        client.flushall()
    with StandInServer(dumps) as server:
        machines = Machines(tmp_path, local_redis, server)
        yield machines
        for worker in machines.workers.values():
            worker.stop()


def test_samples_on_other_disks_are_known_and_their_workers_missed(machines: Machines) -> None:
    """All that is stored is announced, also after FLUSHALL, unless its worker has ended."""
    expected = machines.send(range(40))
    machines.wait_until(lambda: machines.look().keys >= expected)
    on_disk = {name: machines.stored(name) for name in machines.workers}
    heard = machines.look()
    assert heard.keys == on_disk["first"] | on_disk["second"] == expected
    assert heard.num_tokens == sum(1 + number % 50 for number in range(40))
    assert heard.silent == []
    assert all(on_disk.values())
    assert {worker.name: worker.num_samples for worker in heard.workers} == {
        name: len(keys) for name, keys in on_disk.items()
    }

    machines.workers["second"].stop()
    assert machines.look().keys == expected
    assert machines.look().silent == []

    with machines.redis.client() as client:
        client.flushall()
    machines.wait_until(lambda: machines.look().keys == on_disk["first"])
    (silent,) = machines.look().silent
    assert silent.startswith("second@")
    assert silent.endswith(str(machines.tmp_path / "second"))

    machines.workers["second"] = machines.start_worker("second")
    machines.wait_until(lambda: machines.look().keys == expected)
    assert machines.look().silent == []


def test_what_comes_to_another_disk_while_it_is_in_flight_is_stored_once(
    machines: Machines,
) -> None:
    """The other worker waits for the lease, and is told that the sample was stored."""
    asked, go_on = Event(), Event()

    def hold(_key: str, _attempt: int) -> None:
        asked.set()
        go_on.wait(30)

    machines.server.behaviour = hold
    machines.wait_until(lambda: machines.num_serving() == 2)
    (key,) = machines.send(range(1))
    assert asked.wait(60)
    # Each worker has a second process, or two, that takes one of them.
    for _ in range(3):
        machines.send(range(1))
    machines.wait_until(lambda: machines.num_waiting() == 0)
    go_on.set()
    machines.wait_until(lambda: machines.redis.num_messages(queue_name(SPEC.digest)) == 0)
    for worker in machines.workers.values():
        worker.stop()
    assert machines.holdings() == {key: 1}
    assert machines.server.asked == {key: 1}


def test_a_killed_announcer_is_replaced(machines: Machines) -> None:
    """By the child that takes the place of the one that was killed: later samples are known too."""
    expected = machines.send(range(10))
    machines.wait_until(lambda: machines.look().keys >= expected)
    for worker in machines.workers.values():
        for child in psutil.Process(worker.pid).children():
            child.send_signal(signal.SIGKILL)
    expected |= machines.send(range(50, 60))
    machines.wait_until(lambda: machines.look().keys == expected)


def test_a_wiped_redis_costs_nothing_on_disks_that_cannot_be_seen(machines: Machines) -> None:
    """FLUSHALL in the middle and reconcile at once; nobody has looked since enqueue."""
    run, keys = machines.planned(200)
    is_reached, go_on = Event(), Event()

    def behave(_key: str, _attempt: int) -> None:
        if sum(machines.server.asked.values()) >= 100:
            is_reached.set()
            go_on.wait(60)

    machines.server.behaviour = behave
    assert enqueue(run, machines.redis.url, window=0).num_enqueued == 200
    assert is_reached.wait(60)
    # Of what is in flight nobody can know.
    machines.wait_until(lambda: len(machines.holdings()) >= 90)
    with machines.redis.client() as client:
        client.flushall()
    go_on.set()
    machines.wait_until(lambda: len(machines.holdings()) >= 99)
    outcome = reconcile(run, machines.redis.url, window=0)
    assert outcome.silent_workers == ()
    assert outcome.numbers.stored >= 99
    machines.finish(run, keys)


def test_a_worker_that_was_killed_and_started_again_speaks_at_once(machines: Machines) -> None:
    """A round right after that finds what it stored since."""
    run, keys = machines.planned(120)
    machines.workers.pop("second").stop()
    machines.wait_until(lambda: machines.is_spoken_for("first"))
    machines.server.behaviour = lambda _key, _attempt: sleep(0.05)
    assert enqueue(run, machines.redis.url, window=0).num_enqueued == 120
    machines.wait_until(lambda: len(machines.stored("first")) >= 20)
    killed = machines.workers["first"]
    parent = psutil.Process(killed.pid)
    for process in (parent, *parent.children(recursive=True)):
        process.kill()
    killed.wait(30)
    with machines.redis.client() as client:
        held = list(client.scan_iter(match=TAKEN_PATTERN, _type="hash"))
        assert held
        client.delete(queue_name(SPEC.digest), *held)
    lease = machines.lease("first")
    machines.workers["first"] = machines.start_worker("first")
    # The lease of the killed one would last for 20 seconds.
    machines.workers["first"].wait_until(lambda: machines.lease("first") != lease, 15)
    assert lease
    assert machines.lease("first")
    machines.finish(run, keys)
