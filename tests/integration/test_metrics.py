"""A real worker, scraped as Prometheus does it: every figure is what was sent, by hand."""

import json
import os
import re
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event

import httpx
import psutil
import pytest
from celery import Celery
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from statetap_contract import TASK_NAME, Job, Prompt, celery_settings, queue_name
from statetap_local.service import Service, free_port
from statetap_local.services import LocalRedis

from .stand_in_server import SPEC, StandInServer

RUN = "a-run"
QUEUE = queue_name(SPEC.digest)

#: A row of the stand-in: three slots of 16 float32.
ROW_BYTES = 3 * 16 * 4

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Bench:
    """One worker of two processes, with metrics, beside a stand-in server."""

    def __init__(self, tmp_path: Path, local_redis: LocalRedis, server: StandInServer) -> None:
        self.server = server
        self.runs = tmp_path / "runs"
        self.runs.mkdir()
        self.temporary = tmp_path / "temporary"
        self.temporary.mkdir()
        self.redis = local_redis
        self.port = free_port()
        self._app = Celery("test")
        self._app.conf.update(celery_settings(local_redis.url))
        command = [
            str(Path(sys.executable).parent / "statetap-worker"),
            f"--server={server.url}",
            f"--dumps={server.dumps}",
            f"--runs={self.runs}",
            "--name=w",
            "--processes=2",
            f"--metrics-port={self.port}",
            "--log-level=info",
        ]
        environment = {"STATETAP_REDIS": local_redis.url, "TMPDIR": str(self.temporary)}
        self.worker = Service("worker", command, tmp_path / "worker.log", environment)
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False)

    def send(self, number: int, length: int) -> Job:
        ids = array("i", [(7 * number + i) % 1000 for i in range(length)])
        job = Job.of(RUN, SPEC.digest, Prompt(ids, ((0, 1),)))
        self._app.send_task(TASK_NAME, args=[job.to_message()], queue=QUEUE)
        return job

    def families(self) -> list[Metric]:
        """What the worker answers, read by Prometheus's own parser."""
        answer = self._http.get("/metrics", timeout=10).raise_for_status()
        return list(text_string_to_metric_families(answer.text))

    def samples(self) -> Samples:
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families()
            for sample in family.samples
        }

    def wait_for(self, name: str, value: float, **labels: str) -> Samples:
        """The first samples in which this one has the value."""
        found: Samples = {}

        def is_there() -> bool:
            # It is starting, or was killed while it answered.
            with suppress(httpx.TransportError):
                found.update(self.samples())
            return found.get((name, tuple(labels.items()))) == value

        self.worker.wait_until(is_there, 60)
        return found

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.worker.pid).children()

    def events(self) -> list[dict[str, str]]:
        """The log, every line of which must be one of ours."""
        lines = self.worker.log.read_text().splitlines()
        events = []
        for line in lines:
            pairs = re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"]+)(?: |$)', line)
            assert " ".join(f"{name}={value}" for name, value in pairs) == line
            values = {
                name: json.loads(value) if value.startswith('"') else value for name, value in pairs
            }
            assert list(values)[:5] == ["time", "level", "process", "logger", "event"]
            events.append(values)
        return events


@pytest.fixture
def bench(tmp_path: Path, local_redis: LocalRedis) -> Iterator[Bench]:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with local_redis.client() as client:
        client.flushall()
    with StandInServer(dumps) as server:
        bench = Bench(tmp_path, local_redis, server)
        yield bench
        bench.worker.stop()


def test_figures_are_what_was_sent(bench: Bench) -> None:
    """Samples, tokens, bytes, stages, one retry, one dead letter, one sample that was there."""
    bench.wait_for("statetap_server_ready", 1)
    retried = bench.send(3, 11)
    bench.server.wrong_ids[retried.key] = [0] * 11
    refused = bench.send(4, 13)
    bench.server.behaviour = lambda key, _attempt: (
        (400, {"error": {"message": "too long"}}) if key == refused.key else None
    )
    jobs = [bench.send(number, length) for number, length in enumerate((3, 5, 7))]
    bench.wait_for("statetap_samples_stored_total", 4)
    bench.send(0, 3)
    bench.wait_for("statetap_samples_found_total", 1)
    samples = bench.wait_for("statetap_prompts_in_flight", 0)
    assert samples["statetap_samples_stored_total", ()] == 4
    assert samples["statetap_tokens_stored_total", ()] == 3 + 5 + 7 + 11
    assert samples["statetap_states_stored_bytes_total", ()] == (3 + 5 + 7 + 11) * ROW_BYTES
    for stage in ("server", "prove", "store"):
        assert samples["statetap_stage_seconds_count", (("stage", stage),)] == 4
    assert samples["statetap_retries_total", (("kind", "dump-token-ids"),)] == 1
    assert samples["statetap_dead_letters_total", (("kind", "request-refused"),)] == 1
    assert samples["statetap_queue_messages", (("queue", QUEUE),)] == 0
    assert samples["statetap_redis_ready", ()] == 1
    assert samples["statetap_unreadable_messages_total", ()] == 0
    free_bytes = os.statvfs(bench.runs).f_bavail * os.statvfs(bench.runs).f_frsize
    assert samples["statetap_runs_free_bytes", ()] == pytest.approx(free_bytes, rel=0.1)

    bench.worker.stop()
    assert list(bench.temporary.iterdir()) == []
    stored = {event["key"]: event for event in bench.events() if event["event"] == "stored"}
    assert stored.keys() == {job.key for job in (*jobs, retried)}
    assert stored[retried.key]["attempt"] == "2"
    assert stored[retried.key]["num_tokens"] == "11"
    for stage in ("server_ms", "prove_ms", "store_ms"):
        assert float(stored[retried.key][stage]) >= 0
    failed = {
        (event["event"], event["level"], event["key"], event["kind"])
        for event in bench.events()
        if "kind" in event
    }
    assert failed == {
        ("trying again", "warning", retried.key, "dump-token-ids"),
        ("dead letter", "error", refused.key, "request-refused"),
    }


def test_counters_go_on_after_kills(bench: Bench) -> None:
    """With kill -9 of every process, the one that answers included; the port is taken again."""
    bench.send(0, 3)
    bench.send(1, 5)
    bench.wait_for("statetap_samples_stored_total", 2)
    for _ in range(3):
        for child in bench.children():
            child.send_signal(signal.SIGKILL)
        bench.wait_for("statetap_server_ready", 1)
    bench.send(2, 7)
    samples = bench.wait_for("statetap_samples_stored_total", 3)
    assert samples["statetap_tokens_stored_total", ()] == 3 + 5 + 7
    (folder,) = bench.temporary.glob("statetap-metrics-*")
    slots = {file.stem.rpartition("_")[2] for file in folder.iterdir()}
    assert slots == {"00", "01"}


def test_what_is_in_flight_and_what_waits(bench: Bench) -> None:
    """Two processes hold a prompt each; the others wait in Redis, or on their way."""
    go_on = Event()
    bench.server.behaviour = lambda _key, _attempt: (go_on.wait(30), None)[1]
    try:
        for number in range(20):
            bench.send(number, 3)
        samples = bench.wait_for("statetap_prompts_in_flight", 2)
        # Each process is given one more in advance.
        assert 14 <= samples["statetap_queue_messages", (("queue", QUEUE),)] <= 18
    finally:
        go_on.set()
    bench.wait_for("statetap_samples_stored_total", 20)
    bench.wait_for("statetap_prompts_in_flight", 0)


def test_an_outage_is_counted_and_shown(bench: Bench) -> None:
    """A busy server is waited for: no retry, no dead letter."""
    bench.server.behaviour = lambda _key, attempt: (
        (503, {"message": "busy"}) if attempt == 1 else None
    )
    bench.send(0, 3)
    samples = bench.wait_for("statetap_samples_stored_total", 1)
    assert samples["statetap_server_waits_total", (("kind", "server-busy"),)] == 1
    assert not [name for name, _ in samples if name.startswith("statetap_retries")]
    assert not [name for name, _ in samples if name.startswith("statetap_dead_letters")]


def test_a_redis_that_hangs_costs_its_own_lines(bench: Bench) -> None:
    """It is stopped, not gone: nothing refuses a connection."""
    bench.wait_for("statetap_redis_ready", 1)
    os.kill(bench.redis.pid, signal.SIGSTOP)
    try:
        samples = bench.wait_for("statetap_redis_ready", 0)
    finally:
        os.kill(bench.redis.pid, signal.SIGCONT)
    assert samples["statetap_server_ready", ()] == 1
    bench.wait_for("statetap_redis_ready", 1)


def test_a_port_in_use_ends_the_worker(tmp_path: Path, local_redis: LocalRedis) -> None:
    """At the start, with a sentence and code 3."""
    with StandInServer(tmp_path) as server:
        port = server.url.rpartition(":")[2]
        program = str(Path(sys.executable).parent / "statetap-worker")
        folders = [f"--dumps={tmp_path}", f"--runs={tmp_path}"]
        ended = subprocess.run(
            [program, f"--server={server.url}", *folders, f"--metrics-port={port}"],
            env=os.environ | {"STATETAP_REDIS": local_redis.url},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert ended.returncode == 3
    assert ended.stderr == (
        f"statetap-worker: metrics cannot be served on 127.0.0.1:{port} (Address already in use); "
        "give another --metrics-port\n"
    )


def test_the_document_names_every_metric(bench: Bench, repository: Path) -> None:
    """Name, type and labels; and the example alerts use no other."""
    documented = {}
    for line in (repository / "docs" / "metrics.md").read_text().splitlines():
        if row := re.match(r"\| `(statetap_\w+)` \| (\w+) \|([^|]*)\|", line):
            documented[row[1]] = (row[2], set(re.findall(r"`(\w+)`", row[3])))
    retried, refused, busy = bench.send(0, 3), bench.send(1, 4), bench.send(2, 5)
    bench.server.wrong_ids[retried.key] = [0] * 3
    answers = {refused.key: (400, {"message": "no"}), busy.key: (503, {"message": "busy"})}
    bench.server.behaviour = lambda key, attempt: answers.get(key) if attempt == 1 else None
    bench.wait_for("statetap_samples_stored_total", 2)
    found = {}
    for family in bench.families():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = (family.type, labels)
    assert documented == found
    rules = (repository / "infra" / "prometheus" / "statetap.rules.yml").read_text()
    assert set(re.findall(r"statetap_\w+", rules)) <= found.keys()
