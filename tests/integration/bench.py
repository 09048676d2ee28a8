"""A real worker to be tried: one beside a stand-in server, with a queue of its own."""

import json
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from celery import Celery
from statetap_contract import (
    TASK_NAME,
    CaptureSpec,
    DeadLetter,
    Job,
    Prompt,
    celery_settings,
    queue_name,
)
from statetap_local.service import Service
from statetap_local.services import LocalRedis
from statetap_store import RunScanner, ShardReader

from .stand_in_server import SPEC, StandInServer, states_of

RUN = "a-run"


class Bench:
    """One worker of two processes beside a stand-in server, with a queue of its own."""

    def __init__(
        self,
        tmp_path: Path,
        local_redis: LocalRedis,
        server: StandInServer,
        redis_url: str | None = None,
    ) -> None:
        self.server = server
        #: Where the worker and Celery find Redis.
        self.redis_url = redis_url or local_redis.url
        self.runs = tmp_path / "runs"
        self.runs.mkdir()
        self.redis = local_redis
        self._app = Celery("test")
        self._app.conf.update(celery_settings(self.redis_url))
        self._log = tmp_path / "worker.log"
        self.worker = self.start_worker()

    def start_worker(self) -> Service:
        command = [
            str(Path(sys.executable).parent / "statetap-worker"),
            f"--server={self.server.url}",
            f"--dumps={self.server.dumps}",
            f"--runs={self.runs}",
            "--name=w",
            "--processes=2",
            "--shard-gib=0.01",
        ]
        return Service("worker", command, self._log, {"STATETAP_REDIS": self.redis_url})

    def send(self, *arguments: Any, spec: CaptureSpec = SPEC) -> None:
        self._app.send_task(TASK_NAME, args=arguments, queue=queue_name(spec.digest))

    def send_jobs(self, lengths: list[int]) -> list[Job]:
        jobs = [job_of(number, length) for number, length in enumerate(lengths)]
        for job in jobs:
            self.send(job.to_message())
        return jobs

    def stored_keys(self) -> set[str]:
        folder = self.runs / RUN / "shards"
        if not folder.is_dir():
            return set()
        scanner = RunScanner(folder)
        scanner.refresh()
        return set(scanner.keys)

    def dead_letters(self) -> list[DeadLetter]:
        files = (self.runs / RUN / "ledger").glob("*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return [DeadLetter.from_json(json.loads(line)) for line in lines]

    def num_messages(self) -> int:
        """Messages waiting for a worker or held by one."""
        return self.redis.num_messages(queue_name(SPEC.digest))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        self.worker.wait_until(condition, 60)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.worker.pid).children()


def job_of(number: int, length: int) -> Job:
    ids = array("i", [(7 * number + i) % 1000 for i in range(length)])
    return Job.of(RUN, SPEC.digest, Prompt(ids, ((0, 1),)), "ab" * 16, "cd" * 16)


def assert_stored_once(bench: Bench, jobs: list[Job]) -> None:
    """Every job's sample is in exactly one shard, with the states of its own tokens."""
    expected = {job.key: job for job in jobs}
    found = []
    for path in sorted((bench.runs / RUN / "shards").glob("*.h5")):
        with ShardReader(path) as reader:
            provenance = reader.provenance
            assert (provenance.run, provenance.host) == (RUN, "stand-in")
            assert provenance.tokenizer_digest == "ab" * 16
            assert provenance.template_digest == "cd" * 16
            for entry in reader.samples:
                sample = reader.read(entry)
                ids = np.array(expected[entry.key].prompt.token_ids, np.int32)
                np.testing.assert_array_equal(sample.token_ids, ids)
                np.testing.assert_array_equal(sample.states, states_of(ids))
                found.append(entry.key)
    assert sorted(found) == sorted(expected)
