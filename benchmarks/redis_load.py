"""What one worker asks of Redis, and of memory: what bounds how many can share one Redis.

A worker beside a real server extracts prompts of 500 tokens. Redis itself says how many commands it
was given and how long it computed, between two moments in which nobody else talked to it; the same
with the worker idle is counted apart, as it grows with the workers and not with the samples.

    python benchmarks/redis_load.py [--prompts N] [--processes N] [--folder DIR]
"""

import argparse
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import psutil
import redis
from rich.console import Console
from rich.table import Table
from statetap_contract import MissingError, Prompt
from statetap_local.measured_worker import MeasuredWorker
from statetap_local.models import tiny_llama
from statetap_local.random_prompts import random_prompt

REPOSITORY = Path(__file__).resolve().parents[1]
#: As many as the sizes in docs/scaling.md assume.
NUM_TOKENS = 500
#: Seconds in which an idle worker is watched.
IDLE_S = 20.0
#: Seconds for all prompts, at most.
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Load:
    """What one worker costs."""

    num_processes: int
    num_connections: int
    #: Proportional set size of the worker and its children after the last sample, bytes.
    memory_bytes: int
    idle_commands_s: float
    idle_cpu_share: float
    commands_sample: float
    cpu_us_sample: float


@dataclass(frozen=True, slots=True)
class _Reading:
    time_s: float
    num_commands: int
    cpu_s: float

    @classmethod
    def of(cls, client: redis.Redis) -> "_Reading":
        numbers = cast("dict[str, float]", client.info())
        cpu_s = numbers["used_cpu_user"] + numbers["used_cpu_sys"]
        return cls(time.monotonic(), int(numbers["total_commands_processed"]), cpu_s)


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--processes", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--folder", type=Path, help="where shards are written")
    arguments = parser.parse_args()
    # A polite kill must stop the services too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    loads = [
        measure(number, arguments.prompts, idle_s=IDLE_S, folder=arguments.folder)
        for number in arguments.processes
    ]
    table = Table(title=f"one worker and its Redis, {arguments.prompts} prompts")
    table.add_column("")
    for load in loads:
        table.add_column(f"{load.num_processes} processes", justify="right")
    for label, texts in (
        ("connections", [f"{load.num_connections}" for load in loads]),
        ("memory, MB", [f"{load.memory_bytes / 1e6:,.0f}" for load in loads]),
        ("idle: commands/s", [f"{load.idle_commands_s:.1f}" for load in loads]),
        ("idle: share of a core", [f"{load.idle_cpu_share:.2%}" for load in loads]),
        ("a sample: commands", [f"{load.commands_sample:.1f}" for load in loads]),
        ("a sample: µs of a core", [f"{load.cpu_us_sample:.0f}" for load in loads]),
    ):
        table.add_row(label, *texts)
    Console().print(table)
    print(f"load of the machine over the last minutes: {os.getloadavg()[1]:.1f}")
    return 0


def measure(
    num_processes: int, num_prompts: int, *, idle_s: float, folder: Path | None = None
) -> Load:
    """Watches a worker idle, then busy."""
    generator = random.Random(num_processes)
    model = tiny_llama(REPOSITORY / ".cache" / "models")
    with (
        MeasuredWorker(model, num_processes=num_processes, folder=folder) as worker,
        worker.redis.client() as client,
    ):

        def prompts(number: int) -> list[Prompt]:
            return [
                random_prompt(generator, NUM_TOKENS, worker.capture.vocab_size)
                for _ in range(number)
            ]

        # Each process shakes hands and opens its shard, which in a run it does once.
        worker.extract("awake", prompts(4 * num_processes), PATIENCE_S)
        time.sleep(2)
        before = _Reading.of(client)
        time.sleep(idle_s)
        idle = _Reading.of(client)
        worker.give("busy", prompts(num_prompts))
        deadline_s = time.monotonic() + PATIENCE_S
        # Looked for on disk: a question to Redis would be counted.
        while len(worker.written_ns("busy")) < num_prompts:
            if time.monotonic() > deadline_s:
                raise MissingError("too-slow", f"not done after {PATIENCE_S:.0f} s; see the load")
            time.sleep(0.5)
        time.sleep(2)
        busy = _Reading.of(client)
        connections = cast("dict[str, int]", client.info("clients"))["connected_clients"]
        rest_s = busy.time_s - idle.time_s
        idle_s = idle.time_s - before.time_s
        idle_commands_s = (idle.num_commands - before.num_commands) / idle_s
        idle_cpu = (idle.cpu_s - before.cpu_s) / idle_s
        num_commands = busy.num_commands - idle.num_commands - idle_commands_s * rest_s
        cpu_s = busy.cpu_s - idle.cpu_s - idle_cpu * rest_s
        return Load(
            num_processes,
            connections - 1,  # this process's own
            _memory_of_worker(),
            idle_commands_s,
            idle_cpu,
            num_commands / num_prompts,
            cpu_s / num_prompts * 1e6,
        )


def _memory_of_worker() -> int:
    processes = psutil.Process().children(recursive=True)
    return sum(
        int(process.memory_full_info().pss)
        for process in processes
        if any("statetap-worker" in part for part in process.cmdline())
    )


if __name__ == "__main__":
    sys.exit(main())
