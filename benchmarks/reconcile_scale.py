"""What a round of ``reconcile`` takes when all samples of a large run are looked at.

Samples of one token lie in shards of several writers, and the plan holds the same keys. A round
reads the keys of the plan, the index of every shard and the queue, and finds nothing missing;
another one finds the last prompts of the plan missing and enqueues them.

    python benchmarks/reconcile_scale.py [--samples N] [--folder DIR]
"""

import argparse
import statistics
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from statetap_contract import CaptureSpec, Prompt
from statetap_local.made_runs import write_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.queue_scan import queued_prompts
from statetap_producer.queueing.reconcile import ReconcileOutcome, reconcile
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, RunScanner, ShardWriter

SPEC = CaptureSpec("bench", "none", (1,), "post", 4, "bfloat16")
NUM_WRITERS = 8
#: Prompts without a sample in the second case.
NUM_MISSING = 1000
ROUNDS = 3
#: Appended together.
BLOCK = 1000

TOKEN_IDS, LOSS_MASK = np.ones(1, np.int32), np.ones(1, np.uint8)
STATES = np.ones((1, SPEC.row_width), np.uint16)

#: Seconds for a million samples.
BOUND_S = 20.0


def main() -> int:
    """Prints the figures; 1 when one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write")
    arguments = parser.parse_args()
    bound_s = BOUND_S * arguments.samples / 1e6
    table = Table(title=f"reconcile, {arguments.samples:,} samples in {NUM_WRITERS} shards")
    for column in ("", "seconds", "bound"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        service = LocalRedis(folder / "redis", folder / "redis.log", "no-secret")
        try:
            run = stored_run(folder / "run", arguments.samples)
            for label, part in parts_of(run, service.url).items():
                table.add_row(f"  {label}", f"{median_s(part):.2f}", "")
            round_s = median_s(lambda: checked(reconcile(run, service.url, window=0), 0))
            table.add_row("a round that finds nothing missing", f"{round_s:.2f}", f"{bound_s:.2f}")
            write_plan(run.path, arguments.samples + NUM_MISSING)
            missing_s = timed(lambda: checked(reconcile(run, service.url, window=0), NUM_MISSING))
            label = f"a round that enqueues {NUM_MISSING:,} at the plan's end"
            table.add_row(label, f"{missing_s:.2f}", f"{bound_s:.2f}")
        finally:
            service.stop()
    Console().print(table)
    is_good = max(round_s, missing_s) <= bound_s
    print("all within their bounds" if is_good else "a figure misses its bound")
    return 0 if is_good else 1


def key_of(number: int) -> str:
    """Keys as digests are: not in order."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"


def stored_run(folder: Path, num_samples: int) -> RunFolder:
    """A run of which every prompt is a sample."""
    run = write_plan(folder, num_samples)
    run.shards.mkdir()
    for writer in range(NUM_WRITERS):
        fill_shard(run, writer, range(writer, num_samples, NUM_WRITERS))
    return run


def write_plan(folder: Path, num_planned: int) -> RunFolder:
    """A plan of prompts of one token under the keys of the samples."""
    prompt = Prompt(array("i", [1]), ((0, 1),))
    return write_run(folder, SPEC, ((key_of(number), prompt) for number in range(num_planned)))


def fill_shard(run: RunFolder, writer: int, numbers: range) -> None:
    """The samples of one writer."""
    provenance = Provenance(run.name, f"w-{writer:02d}", "here", "none", "none", (1,))
    # A shard has room for a sample per 16 tokens.
    room = len(numbers) * 16 * (SPEC.row_bytes + 5)
    path = run.shards / f"w-{writer:02d}-00001.h5"
    with ShardWriter.create(path, SPEC, provenance, room) as shard:
        for place, number in enumerate(numbers, 1):
            shard.append(key_of(number), TOKEN_IDS, LOSS_MASK, STATES)
            if place % BLOCK == 0:
                shard.commit()
        shard.commit()


def parts_of(run: RunFolder, url: str) -> dict[str, Callable[[], object]]:
    """What a round consists of, each by itself."""
    num_planned = run.read_record().counts.num_planned

    def scan() -> RunScanner:
        scanner = RunScanner(run.shards)
        scanner.refresh()
        return scanner

    def look_at_queue() -> object:
        with Broker(url) as broker:
            return queued_prompts(broker, SPEC.digest, run.name)

    return {
        "keys of the plan": lambda: Plan(run.plan_file, num_planned).keys(),
        "indexes of the shards": scan,
        "the queue, which is empty": look_at_queue,
    }


def checked(outcome: ReconcileOutcome, num_enqueued: int) -> None:
    """Makes sure that a round did what is measured."""
    if outcome.num_enqueued != num_enqueued or outcome.is_over != (num_enqueued == 0):
        raise RuntimeError(f"{outcome} enqueued other than {num_enqueued}")


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def median_s(work: Callable[[], object]) -> float:
    """Median seconds of some rounds."""
    return statistics.median(timed(work) for _ in range(ROUNDS))


if __name__ == "__main__":
    sys.exit(main())
