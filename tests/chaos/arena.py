"""Arena: the whole pipeline as processes that are started again whenever they end."""

import json
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

import redis
from statetap_local.service import Service
from statetap_local.services import LocalRedis, LocalServer
from statetap_producer.run.run_folder import RunFolder

from .keeper import Keeper
from .relay import Relay

#: Prompts have this many tokens: short, so that the rate is not the model's.
LENGTHS: Final = (5, 60)

_PASSWORD: Final = "s3cret-word"  # noqa: S105  of a Redis that lives as long as a test
_NUM_PROCESSES: Final = 4
_WORKERS: Final = ("left", "right")

#: SGLang waits a minute for a core dump of CUDA before a server without a scheduler ends.
_NO_POST_MORTEM: Final = {"SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0"}

#: Seconds in which a service that was killed must be back, on a busy machine.
START_S: Final = 240.0

#: Seconds after which a command hangs that was given.
_COMMAND_S: Final = 600.0


class Arena:
    """Redis, a server, two workers of four processes on one queue, and ``reconcile --every``.

    Workers and commands reach Redis, and workers the server, through relays, whose addresses stay
    the same whatever is started behind them.

    Args:
        folder: for everything that is written.
        model: folder of the tiny model.
        dumps: dump folder on shared memory.
    """

    def __init__(self, folder: Path, model: Path, dumps: Path) -> None:
        self.run = RunFolder(folder / "runs" / "chaos")
        self.dumps = dumps
        self.model = model
        self._folder = folder
        (folder / "runs").mkdir()
        self.to_redis = Relay(b"")
        self.to_server = Relay(b"POST /generate ")
        self.redis_url = f"redis://:{_PASSWORD}@127.0.0.1:{self.to_redis.port}/0"
        #: Of workers and commands. Threads of matrix products would spin for work beside others.
        self._environment = {"STATETAP_REDIS": self.redis_url, "OMP_NUM_THREADS": "1"}
        self.redis = Keeper("Redis", self._start_redis)
        self.server = Keeper("the server", self._start_server)
        self.workers: list[Keeper] = []
        self.reconcilers: list[Keeper] = []

    def plan(self, num_samples: int, seed: int) -> None:
        """Plans that many different prompts of ready token ids."""
        generator = random.Random(seed)
        dataset = self._folder / "prompts.jsonl"
        with dataset.open("w") as lines:
            for _ in range(num_samples):
                ids = [generator.randrange(2, 512) for _ in range(generator.randint(*LENGTHS))]
                loss_mask = [0, *(generator.randrange(2) for _ in ids[2:]), 1]
                lines.write(json.dumps({"input_ids": ids, "loss_mask": loss_mask}) + "\n")
        for keeper in (self.redis, self.server):
            keeper.wait(START_S)
        server = f"--server=http://127.0.0.1:{self.to_server.port}"
        self.statetap("plan", str(dataset), f"--model={self.model}", server).check_returncode()

    def open(self) -> None:
        """Fills the queue and starts those who empty it."""
        self.statetap("enqueue", "--window=0").check_returncode()
        self.workers = [Keeper(name, partial(self._start_worker, name)) for name in _WORKERS]
        self.reconcilers = [Keeper("reconcile", self._start_reconcile, pause_s=5)]

    def statetap(
        self, command: str, *arguments: str, timeout_s: float = _COMMAND_S
    ) -> subprocess.CompletedProcess[str]:
        """One command on the run; its exit code is that of ``timeout`` when it takes too long."""
        return self._command(command, *arguments, f"--run={self.run.path}", timeout_s=timeout_s)

    def judge(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One command that takes the run for a path."""
        return self._command(command, str(self.run.path), *arguments, timeout_s=_COMMAND_S)

    def _command(self, *arguments: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
        command = ["timeout", f"{timeout_s:.0f}", _program("statetap"), *arguments]
        return subprocess.run(
            command,
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def client(self) -> redis.Redis:
        """A connection to Redis."""
        return redis.Redis.from_url(self.redis_url, socket_timeout=30)

    @property
    def keepers(self) -> list[Keeper]:
        return [*self.reconcilers, *self.workers, self.server, self.redis]

    def stop_reconciling(self) -> None:
        for keeper in self.reconcilers:
            keeper.close()

    def close(self) -> None:
        """Stops everything, those who use a service before it."""
        for keeper in self.keepers:
            keeper.close()
        self.to_redis.close()
        self.to_server.close()

    def _start_redis(self) -> LocalRedis:
        # A new port, the same files.
        service = LocalRedis(self._folder / "redis", self._folder / "redis.log", _PASSWORD)
        self.to_redis.target = service.port
        return service

    def _start_server(self) -> LocalServer:
        service = LocalServer(
            self.model, self.dumps, self._folder / "server.log", environment=_NO_POST_MORTEM
        )
        self.to_server.target = service.port
        return service

    def _start_worker(self, name: str) -> Service:
        command = [
            _program("statetap-worker"),
            f"--server=http://127.0.0.1:{self.to_server.port}",
            f"--dumps={self.dumps}",
            f"--runs={self.run.path.parent}",
            f"--name={name}",
            f"--processes={_NUM_PROCESSES}",
            "--shard-gib=0.02",
        ]
        return Service(name, command, self._folder / f"worker-{name}.log", self._environment)

    def _start_reconcile(self) -> Service:
        command = [_program("statetap"), "reconcile", f"--run={self.run.path}", "--every=5"]
        return Service("reconcile", command, self._folder / "reconcile.log", self._environment)


def _program(name: str) -> str:
    return str(Path(sys.executable).parent / name)
