"""Two hosts with a server each and a third one with Redis, and a cable that is pulled."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow.parquet as pq
import pytest
from statetap_contract.transport import TAKEN_PATTERN
from statetap_local.service import Service
from statetap_local.services import SERVER_ENVIRONMENT, redis_program
from statetap_store import RunScanner, ShardReader

from .hosts import Host, Network
from .soak_prompts import stored_rows, write_prompts

#: So many that the first host alone is not through while the link of the second one is cut.
_NUM_PROMPTS: Final = 2000
_NUM_PROCESSES: Final = 2
_PASSWORD: Final = "b3tween-hosts"  # noqa: S105  of this test alone
_PATIENCE_S: Final = 240.0

#: What a worker says that looked for an answer of Redis until its time was up.
_CUT_NOTICE: Final = "nothing can be announced for now"


class GpuHost:
    """A host with a server, and with a worker once it is started. Its disk is its own."""

    def __init__(self, host: Host, folder: Path, model: Path, dumps: Path, redis_url: str) -> None:
        self.host = host
        self.run = folder / host.name / "a-run"
        self.run.parent.mkdir()
        self._folder = folder
        self._dumps = dumps
        self._redis_url = redis_url
        command = [
            str(SERVER_ENVIRONMENT / "bin" / "statetap-sglang"),
            *("--cpu", f"--model={model}", f"--dumps={dumps}", "--max-total-tokens=16384"),
        ]
        environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        log = folder / f"server-{host.name}.log"
        self.server = host.start("the server", command, log, environment)
        self.worker: Service | None = None

    def start_worker(self) -> Service:
        """It waits for its server by itself."""
        command = [
            _program("statetap-worker"),
            *(f"--dumps={self._dumps}", f"--runs={self.run.parent}", f"--name={self.host.name}"),
            *(f"--processes={_NUM_PROCESSES}", "--shard-gib=0.1"),
        ]
        log = self._folder / f"worker-{self.host.name}.log"
        environment = {"STATETAP_REDIS": self._redis_url}
        self.worker = self.host.start("the worker", command, log, environment)
        return self.worker

    def stored(self) -> set[str]:
        """Keys of the samples on its disk."""
        if not (self.run / "shards").is_dir():
            return set()
        scanner = RunScanner(self.run / "shards")
        scanner.refresh()
        return set(scanner.keys)

    def can_reach(self, address: str) -> bool:
        """Whether Redis lets itself be connected to."""
        code = f"import socket; socket.create_connection(({address!r}, 6379), 2)"
        return self.host.run([sys.executable, "-c", code], {}).returncode == 0

    def close(self) -> None:
        if self.worker is not None:
            self.worker.stop()
        self.server.stop()


class Site:
    """All hosts, and the run on the disk of the one that plans and queues."""

    def __init__(self, folder: Path, model: Path, repository: Path, end: ExitStack) -> None:
        network = end.enter_context(Network())
        self._control = network.add_host("control")
        self.redis_address = self._control.address
        redis_url = f"redis://:{_PASSWORD}@{self.redis_address}:6379/0"
        self._environment = {"STATETAP_REDIS": redis_url}
        self._folder = folder
        self.run = folder / "control" / "a-run"
        self.run.parent.mkdir()
        redis = self._start_redis(repository)
        end.callback(redis.stop)
        redis.wait_until(lambda: "Ready to accept" in redis.log.read_text(), 30)
        self.hosts = []
        for name in ("gpu-1", "gpu-2"):
            shared = TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm")
            dumps = Path(end.enter_context(shared))
            host = GpuHost(network.add_host(name), folder, model, dumps, redis_url)
            end.callback(host.close)
            self.hosts.append(host)

    def _start_redis(self, repository: Path) -> Service:
        folder = self._folder / "redis"
        folder.mkdir()
        conf = folder / "redis.conf"
        # As docs/runbook.md opens it to other hosts.
        conf.write_text(
            f'include "{repository}/infra/redis.conf"\nbind 127.0.0.1 {self.redis_address}\n'
            f'requirepass {_PASSWORD}\ndir "{folder}"\n'
        )
        command = [str(redis_program()), str(conf)]
        return self._control.start("Redis", command, self._folder / "redis.log", {})

    def statetap(self, *arguments: object) -> str:
        """What a command says, on the host that plans and queues."""
        command = [_program("statetap"), *map(str, arguments)]
        ended = self._control.run(command, self._environment)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def num_in_hand(self, host: GpuHost) -> int:
        """Prompts that its worker took and did not acknowledge, as Redis has it."""
        code = (
            "import os, redis; c = redis.Redis.from_url(os.environ['STATETAP_REDIS']); "
            f"print(sum(map(c.hlen, c.scan_iter('{TAKEN_PATTERN}.{host.host.name}'))))"
        )
        ended = self._control.run([sys.executable, "-c", code], self._environment)
        assert ended.returncode == 0, ended.stderr
        return int(ended.stdout)


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)


@pytest.fixture
def site(tiny_model: Path, tmp_path: Path, repository: Path) -> Iterator[Site]:
    with ExitStack() as end:
        yield Site(tmp_path, tiny_model, repository, end)


def wait_for(condition: Callable[[], bool], workers: list[Service]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        assert all(worker.is_running for worker in workers), "a worker ended"
        assert time.monotonic() < deadline_s
        time.sleep(0.2)  # between two looks


@pytest.mark.timeout(900)
def test_two_hosts_on_one_redis(site: Site, tmp_path: Path, tiny_model: Path) -> None:
    """The second one joins in mid-run and loses its link for a while: all are stored, and once."""
    first, second = site.hosts
    write_prompts(tmp_path / "prompts.jsonl", _NUM_PROMPTS, seed=7)
    site.statetap("plan", tmp_path / "prompts.jsonl", "--run", site.run, "--model", tiny_model)
    site.statetap("enqueue", "--run", site.run)

    # One host, Redis on another.
    workers = [first.start_worker()]
    wait_for(lambda: len(first.stored()) >= 50, workers)

    # A second one in mid-run.
    workers.append(second.start_worker())
    wait_for(lambda: len(second.stored()) >= 50, workers)

    # The link of the second one is cut. What it has in hand is stored, no more, and stays in its
    # hand as far as Redis knows; the first one goes on.
    second.host.cut()
    num_first, num_second = len(first.stored()), len(second.stored())
    assert not second.can_reach(site.redis_address)
    num_in_hand = site.num_in_hand(second)
    assert num_in_hand > 0
    log = workers[1].log
    wait_for(lambda: _CUT_NOTICE in log.read_text(), workers)
    assert site.num_in_hand(second) == num_in_hand
    num_at_rest = len(second.stored())
    assert num_at_rest - num_second <= num_in_hand
    assert len(first.stored()) > num_first
    assert len(first.stored()) + num_at_rest < _NUM_PROMPTS, "it was over before the link healed"

    # And healed: it goes on by itself, and nothing is lost that would have to be put back.
    second.host.heal()
    wait_for(lambda: second.can_reach(site.redis_address), workers)
    wait_for(lambda: len(second.stored()) > num_at_rest + num_in_hand, workers)
    wait_for(lambda: len(first.stored() | second.stored()) == _NUM_PROMPTS, workers)
    wait_for(lambda: site.num_in_hand(first) + site.num_in_hand(second) == 0, workers)
    facts = site.statetap("reconcile", "--run", site.run).split("\n")
    told = dict(fact.rsplit(maxsplit=1) for fact in facts if fact)
    assert told["stored"] == told["planned"] == f"{_NUM_PROMPTS:,}"
    assert {told[name] for name in ("dead", "queued", "in flight", "missing")} == {"0"}
    for worker in workers:
        worker.stop()
        assert worker.wait(0) == 0

    planned = set(pq.read_table(site.run / "plan.parquet", columns=["key"])["key"].to_pylist())
    assert len(planned) == _NUM_PROMPTS
    # Once each, and so is what was in hand while the link was cut.
    rows = sum((stored_rows(host.run / "shards").keys for host in site.hosts), Counter[str]())
    assert rows == Counter(planned)
    assert not list(tmp_path.rglob("ledger/*.jsonl"))
    for host in site.hosts:
        site.statetap("verify", host.run)
    site.statetap("merge", first.run, second.run, "--out", tmp_path / "all.h5")
    with ShardReader(tmp_path / "all.h5") as reader:
        assert sorted(entry.key for entry in reader.samples) == sorted(planned)
