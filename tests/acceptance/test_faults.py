"""Whatever goes wrong between server and worker is recovered from, or ends in the ledger."""

import json
import os
import re
import subprocess
import sys
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest
import torch
from celery import Celery
from statetap_contract import (
    TASK_NAME,
    CaptureSpec,
    DeadLetter,
    Job,
    Prompt,
    celery_settings,
    dump_name,
    queue_name,
)
from statetap_local.made_runs import keyed, write_run
from statetap_local.service import Service
from statetap_local.services import LocalFlower, LocalRedis, LocalServer
from statetap_store import ShardReader
from statetap_worker.asking.server import Server
from statetap_worker.failing.retry import MOST_LOSSES, MOST_TRIES

from .capturing import BOUND, prompts_of
from .faults import ANSWER_TIMEOUT_S, FAULTS, GONE, LOST, STOPS, UNSEEN, Decision, Fault
from .faulty_proxy import FaultyProxy
from .reference import Reference

#: A worker as it is, but for the time that it waits for an answer.
_WORKER: Final = (
    "from statetap_worker import cli; from statetap_worker.asking import server;"
    f"server.Server.capture.__defaults__ = ({ANSWER_TIMEOUT_S},);"
    "cli.main()"
)

_FOR_EVER: Final = 1_000

#: More than any prompt is tried: what is waited for does not count.
_LONG: Final = MOST_TRIES + 2

#: Decisions after which a prompt is not asked for again.
_AT_ONCE: Final = (Decision.GIVE_UP, Decision.GO_ON)

_PATIENCE_S: Final = 150.0


class Place:
    """A folder of runs, a worker for it, and a Redis database of its own."""

    def __init__(
        self, folder: Path, local_redis: LocalRedis, database: int, proxy: FaultyProxy
    ) -> None:
        self.runs = folder / "runs"
        self.runs.mkdir()
        self._redis = local_redis
        self._database = database
        self.redis_url = local_redis.url_of(database)
        self.proxy = proxy
        self.log = folder / "worker.log"
        client = Server(proxy.url)
        self.spec: CaptureSpec = client.handshake().spec
        self._app = Celery("test")
        self._app.conf.update(celery_settings(self.redis_url))

    def start_worker(self, num_processes: int) -> Service:
        command = [sys.executable, "-c", _WORKER, f"--server={self.proxy.url}", "--name=w"]
        command += [f"--dumps={self.proxy.dumps}", f"--runs={self.runs}"]
        command += [f"--processes={num_processes}", "--shard-gib=0.1"]
        return Service("the worker", command, self.log, {"STATETAP_REDIS": self.redis_url})

    def job(self, ids: list[int], run: str = "a-run") -> Job:
        return Job.of(run, self.spec.digest, Prompt(array("i", ids), ((0, 1),)))

    def send(self, job: Job) -> str:
        """Queues a job once more; gives the task's id, which is not its key."""
        queue = queue_name(self.spec.digest)
        return str(self._app.send_task(TASK_NAME, [job.to_message()], queue=queue).id)

    def num_messages(self) -> int:
        """Messages waiting for a worker or held by one."""
        return self._redis.num_messages(queue_name(self.spec.digest), self._database)

    def samples(self, run: str = "a-run") -> list[tuple[str, list[int], torch.Tensor]]:
        """Key, token ids and states of all that is stored."""
        found = []
        for path in (self.runs / run / "shards").glob("*.h5"):
            with ShardReader(path) as reader:
                for entry in reader.samples:
                    sample = reader.read(entry)
                    states = torch.from_numpy(np.asarray(sample.states))
                    found.append((sample.key, sample.token_ids.tolist(), states))
        return found

    def stored_keys(self, run: str = "a-run") -> list[str]:
        return sorted(key for key, _, _ in self.samples(run))

    def letters(self, run: str = "a-run") -> dict[str, DeadLetter]:
        """Dead letters by key; of several for one key the last."""
        files = (self.runs / run / "ledger").glob("*.jsonl")
        lines = [line for path in files for line in path.read_text().splitlines()]
        letters = [DeadLetter.from_json(json.loads(line)) for line in lines]
        return {letter.key: letter for letter in sorted(letters, key=lambda letter: letter.time)}

    def statetap(self, *arguments: object, code: int = 0) -> str:
        """What a command prints."""
        program = Path(sys.executable).parent / "statetap"
        ended = subprocess.run(
            [str(program), *map(str, arguments)],
            env=os.environ | {"STATETAP_REDIS": self.redis_url},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, f"after {_PATIENCE_S:.0f} s: not {what}"
        time.sleep(0.2)  # between two looks


@pytest.fixture
def place(
    tmp_path: Path, server: LocalServer, dumps: Path, local_redis: LocalRedis, storm: "Storm"
) -> Iterator[Place]:
    """A place beside the storm, which goes on meanwhile."""
    assert storm.worker.is_running
    with local_redis.client(database=1) as client:
        client.flushdb()
    with FaultyProxy(server.url, dumps) as proxy:
        yield Place(tmp_path, local_redis, 1, proxy)


@dataclass
class Storm:
    """All faults at once, each for one prompt once and for another one every time."""

    place: Place
    worker: Service
    flower: LocalFlower
    flower_password: str
    jobs: dict[tuple[str, str], Job]

    @property
    def run(self) -> Path:
        return self.place.runs / "a-run"

    def wait(self) -> None:
        """Returns when each prompt is stored or dead."""

        def is_over() -> bool:
            assert self.worker.is_running
            letters = self.place.letters().keys()
            return len(letters | set(self.place.stored_keys())) == len(self.jobs)

        wait_until(is_over, "all prompts stored or dead")

    def flower_shows(self, path: str, **query: str | int) -> dict[str, Any]:
        """What Flower answers, which knows of every task."""
        answer = httpx.get(
            f"{self.flower.url}/api/{path}",
            params=query,
            auth=("statetap", self.flower_password),
            timeout=30,
        )
        answer.raise_for_status()
        shown: dict[str, Any] = answer.json()
        return shown


@pytest.fixture(scope="module")
def storm(
    server: LocalServer,
    dumps: Path,
    local_redis: LocalRedis,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Storm]:
    with local_redis.client() as client:
        client.flushall()
    folder = tmp_path_factory.mktemp("storm")
    names = [(fault.what, times) for fault in FAULTS for times in ("once", "always")]
    names += [("none", str(number)) for number in range(10)]
    lengths = [20 + 37 * number % 500 for number in range(len(names))]
    beginning = prompts_of([40], "beginning")[0]  # that the prefix cache would have
    prompts = [beginning + ids for ids in prompts_of(lengths, "storm")]
    with FaultyProxy(server.url, dumps) as proxy:
        place = Place(folder, local_redis, 0, proxy)
        jobs = dict(zip(names, map(place.job, prompts), strict=True))
        for fault in FAULTS:
            again = _LONG if fault.decision is Decision.WAIT else _FOR_EVER
            proxy.faults[jobs[fault.what, "once"].key] = (fault.inject, 1)
            proxy.faults[jobs[fault.what, "always"].key] = (fault.inject, again)
        write_run(
            place.runs / "a-run",
            place.spec,
            (keyed(place.spec, job.prompt) for job in jobs.values()),
        )
        flower = LocalFlower(
            local_redis, folder / "flower", folder / "flower.log", password=local_redis.password
        )
        worker = place.start_worker(num_processes=12)
        try:
            place.statetap("enqueue", "--run", place.runs / "a-run")
            yield Storm(place, worker, flower, local_redis.password, jobs)
        finally:
            worker.stop()
            flower.stop()


@pytest.fixture(scope="module")
def aftermath(storm: Storm) -> Storm:
    storm.wait()
    return storm


@pytest.mark.parametrize("fault", STOPS, ids=lambda fault: fault.what)
def test_what_no_prompt_is_to_blame_for_stops_the_worker(place: Place, fault: Fault) -> None:
    """With code 3, and nothing is lost: the prompt is stored when the server is as it should be."""
    job = place.job(prompts_of([30], fault.what)[0])
    place.proxy.faults[job.key] = (fault.inject, _FOR_EVER)
    place.send(job)
    worker = place.start_worker(1)
    assert worker.wait(60) == 3
    assert fault.kind in place.log.read_text()
    assert (place.num_messages(), place.letters(), place.stored_keys()) == (1, {}, [])
    place.proxy.faults.clear()
    place.proxy.change_info = lambda capture: capture
    worker = place.start_worker(1)
    try:
        wait_until(lambda: place.stored_keys() == [job.key], "stored")
    finally:
        worker.stop()
    assert place.num_messages() == 0


def test_a_server_that_comes_and_goes(place: Place, tiny_model: Path, reference: Reference) -> None:
    """Innocent prompts wait; the one that it dies of ends in the ledger, tried alone.

    And what nothing in a worker can tell, the crosscheck can: states in other rows than they
    were computed for, with everything else right, as only a fault inside the server leaves them.
    """
    prompts = prompts_of([30] * 8, "come and go")
    deadly, once, *innocent = (place.job(ids) for ids in prompts[:7])
    unseen = place.job(prompts[7], run="unseen")
    place.proxy.faults[deadly.key] = (LOST.inject, _FOR_EVER)
    place.proxy.faults[once.key] = (LOST.inject, 1)
    place.proxy.faults[unseen.key] = (UNSEEN, _FOR_EVER)
    worker = place.start_worker(4)
    try:
        for job in (deadly, once, *innocent, unseen):
            place.send(job)
        wait_until(lambda: deadly.key in place.letters(), "given up")
        expected = sorted(job.key for job in (once, *innocent))
        wait_until(lambda: place.stored_keys() == expected, "the innocent stored")
        wait_until(lambda: place.stored_keys("unseen") == [unseen.key], "the unseen stored")
    finally:
        worker.stop()
    letter = place.letters()[deadly.key]
    assert (letter.kind, letter.attempts) == (LOST.kind, MOST_LOSSES)
    assert place.letters().keys() == {deadly.key}
    # A connection that breaks before the prompt is through looks the same from the worker.
    assert 2 <= place.proxy.asked[deadly.key] <= MOST_LOSSES
    assert GONE.kind in place.log.read_text()
    for _, ids, states in place.samples():
        assert (states - reference.states(ids, place.spec.layers)).abs().max() <= BOUND
    place.statetap("verify", place.runs / "unseen")
    arguments = "crosscheck", place.runs / "unseen", "--model", tiny_model
    assert "rows-shifted" in place.statetap(*arguments, code=1)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_that_passes(aftermath: Storm, fault: Fault) -> None:
    """The sample is stored once, after another try; what is refused is not tried again."""
    job = aftermath.jobs[fault.what, "once"]
    place = aftermath.place
    assert place.proxy.asked[job.key] >= (1 if fault.decision in _AT_ONCE else 2)
    if fault.decision is Decision.GIVE_UP:
        letter = place.letters()[job.key]
        assert (letter.kind, letter.attempts, place.proxy.asked[job.key]) == (fault.kind, 1, 1)
    else:
        assert place.stored_keys().count(job.key) == 1
        assert job.key not in place.letters()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what)
def test_a_fault_that_stays(aftermath: Storm, fault: Fault) -> None:
    """The sample ends in the ledger with its reason; what is waited for never counts."""
    job = aftermath.jobs[fault.what, "always"]
    place = aftermath.place
    letter = place.letters().get(job.key)
    if fault.decision in (Decision.WAIT, Decision.GO_ON):
        assert letter is None
        assert place.stored_keys().count(job.key) == 1
        if fault.decision is Decision.WAIT:
            assert place.proxy.asked[job.key] > _LONG
        return
    assert job.key not in place.stored_keys()
    assert letter is not None
    num_tries = MOST_TRIES if fault.decision is Decision.AGAIN else 1
    assert (letter.kind, letter.attempts) == (fault.kind, num_tries)
    assert place.proxy.asked[job.key] >= num_tries
    assert letter.server == place.proxy.url


def test_every_stored_row_is_right(aftermath: Storm, reference: Reference) -> None:
    """As HF transformers computes it, whatever was injected on the way; and verify is clean."""
    jobs = {job.key: job for job in aftermath.jobs.values()}
    place = aftermath.place
    samples = place.samples()
    for key, ids, states in samples:
        assert ids == jobs[key].prompt.token_ids.tolist()
        assert (states - reference.states(ids, place.spec.layers)).abs().max() <= BOUND
    assert len({key for key, _, _ in samples}) == len(samples)
    place.statetap("verify", aftermath.run)


def test_the_account_is_exact(aftermath: Storm) -> None:
    """``status`` shows what was given up by reason, and that nothing is missing."""
    letters, num_jobs = aftermath.place.letters(), len(aftermath.jobs)
    wait_until(lambda: aftermath.place.num_messages() == 0, "acknowledged")
    numbers = json.loads(aftermath.place.statetap("status", "--run", aftermath.run, "--json"))
    assert (numbers["planned"], numbers["pending"]) == (num_jobs, 0)
    assert numbers["dead"] == len(letters)
    assert numbers["stored"] == num_jobs - len(letters)
    expected: Counter[str] = Counter()
    for fault in FAULTS:
        expected[fault.kind] += {Decision.AGAIN: 1, Decision.GIVE_UP: 2}.get(fault.decision, 0)
    assert numbers["dead_by_kind"] == dict(+expected)


def test_flower_shows_what_was_given_up(aftermath: Storm) -> None:
    """Each dead letter is a failed task under its sample key, with the reason."""
    letters = aftermath.place.letters()

    def failures() -> dict[str, Any]:
        return aftermath.flower_shows("tasks", state="FAILURE", limit=10_000)

    wait_until(lambda: failures().keys() == letters.keys(), "all dead letters in Flower")
    for key, task in failures().items():
        assert letters[key].kind in task["exception"]


def test_a_lost_acknowledgement(aftermath: Storm) -> None:
    """The message comes again after its sample was stored: nothing is asked or stored twice."""
    place, job = aftermath.place, aftermath.jobs["none", "0"]
    wait_until(lambda: place.num_messages() == 0, "acknowledged")
    task_id = place.send(job)

    def is_found() -> bool:
        done = aftermath.flower_shows("tasks", state="SUCCESS", limit=10_000)
        return task_id in done and "'is_new': False" in done[task_id]["result"]

    wait_until(is_found, "found stored")
    wait_until(lambda: place.num_messages() == 0, "acknowledged again")
    assert place.proxy.asked[job.key] == 1
    assert place.stored_keys().count(job.key) == 1


def test_nothing_is_left_in_shared_memory(aftermath: Storm, dumps: Path) -> None:
    """Neither of what was stored nor of what was given up."""
    left = [job.key for job in aftermath.jobs.values() if (dumps / dump_name(job.key)).exists()]
    assert left == []


def test_an_answer_without_end_fills_no_memory(aftermath: Storm) -> None:
    """The worker hangs up after some megabytes of a gigabyte."""
    key = aftermath.jobs["an answer without end", "once"].key
    assert aftermath.place.proxy.sent_bytes[key] < 64_000_000


def test_the_document_says_the_same(repository: Path) -> None:
    """Fault, kind and decision of docs/faults.md are those of these tests."""
    text = (repository / "docs" / "faults.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (?:`(.+?)`|none) \| (.+?) \|$", text, re.MULTILINE)
    assert rows == [
        (fault.what, fault.kind, str(fault.decision)) for fault in (*FAULTS, LOST, GONE, *STOPS)
    ]


def test_a_rerun_stores_what_was_refused_once(aftermath: Storm) -> None:
    """The refused prompts are queued afresh; the server takes one and refuses the other again."""
    place = aftermath.place
    once, always = (aftermath.jobs["400", times] for times in ("once", "always"))
    place.statetap("rerun", "--run", aftermath.run, "--reason", "request-refused")
    wait_until(lambda: once.key in place.stored_keys(), "stored")
    wait_until(lambda: place.proxy.asked[always.key] == 2, "refused again")
