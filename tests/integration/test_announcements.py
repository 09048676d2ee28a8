"""Real workers whose disks the producer cannot see, and a real Redis that forgets."""

import signal
import sys
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from celery import Celery
from statetap_contract import TASK_NAME, Job, Prompt, celery_settings, queue_name
from statetap_local.service import Service
from statetap_local.services import LocalRedis
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.broker import Broker
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


def test_a_killed_announcer_is_replaced(machines: Machines) -> None:
    """By the child that takes the place of the one that was killed: later samples are known too."""
    expected = machines.send(range(10))
    machines.wait_until(lambda: machines.look().keys >= expected)
    for worker in machines.workers.values():
        for child in psutil.Process(worker.pid).children():
            child.send_signal(signal.SIGKILL)
    expected |= machines.send(range(50, 60))
    machines.wait_until(lambda: machines.look().keys == expected)
