"""What a report on a large run costs: time, memory, and the size of its page.

Samples of one token lie in shards of many writers, and the plan holds the same keys. A tenth of
them, and then all, are reported on by the command in a process of its own, whose largest memory is
what is given.

    python benchmarks/report_scale.py [--samples N] [--folder DIR]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from statetap_contract import CaptureSpec, Prompt
from statetap_local.made_runs import write_run
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, ShardWriter

SPEC = CaptureSpec("bench", "none", (1,), "post", 4, "bfloat16")
NUM_WRITERS = 16
#: Appended together.
BLOCK = 1000

TOKEN_IDS, LOSS_MASK = np.ones(1, np.int32), np.ones(1, np.uint8)
STATES = np.full((1, SPEC.row_width), 0x3F80, np.uint16)

#: The command, which then tells its largest memory in KiB. Not by ``wait4``: there it begins with
#: that of the process from which it was started.
SCRIPT = """
import re
from statetap_producer.cli import main
try:
    main()
finally:
    print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""

#: Bytes of the page, and for a million samples seconds and bytes of memory.
PAGE_BOUND = 1_000_000
SECONDS_BOUND = 30.0
MEMORY_BOUND = 1_500_000_000


@dataclass(frozen=True)
class Cost:
    """Of one report."""

    seconds: float
    peak_bytes: int
    page_bytes: int


def main() -> int:
    """Prints the figures; 1 when one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write")
    arguments = parser.parse_args()
    table = Table(title="a report, by the samples of its run")
    for column in ("samples", "seconds", "largest memory", "page"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        for num_samples in (arguments.samples // 10, arguments.samples):
            run = large_run(Path(name) / f"run-{num_samples}", num_samples)
            cost = report_cost(run)
            table.add_row(
                f"{num_samples:,}",
                f"{cost.seconds:.1f}",
                decimal(cost.peak_bytes),
                decimal(cost.page_bytes),
            )
    Console().print(table)
    scale = max(1.0, arguments.samples / 1e6)
    is_good = (
        cost.seconds <= SECONDS_BOUND * scale
        and cost.peak_bytes <= MEMORY_BOUND * scale
        and cost.page_bytes <= PAGE_BOUND
    )
    print("all within their bounds" if is_good else "a figure misses its bound")
    return 0 if is_good else 1


def key_of(number: int) -> str:
    """Keys as digests are: not in order."""
    return f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"


def large_run(folder: Path, num_samples: int) -> RunFolder:
    """A run of which every prompt is a sample."""
    prompt = Prompt(array("i", [1]), ((0, 1),))
    run = write_run(folder, SPEC, ((key_of(number), prompt) for number in range(num_samples)))
    run.shards.mkdir()
    for writer in range(NUM_WRITERS):
        fill_shard(run, writer, range(writer, num_samples, NUM_WRITERS))
    return run


def fill_shard(run: RunFolder, writer: int, numbers: range) -> None:
    """The samples of one writer."""
    name = f"w-{writer:02d}"
    provenance = Provenance(run.name, name, f"host-{writer % 4}", "none", "none", (1,))
    # A shard has room for a sample per 16 tokens.
    room = len(numbers) * 16 * (SPEC.row_bytes + 5)
    with ShardWriter.create(run.shards / f"{name}-00001.h5", SPEC, provenance, room) as shard:
        for place, number in enumerate(numbers, 1):
            shard.append(key_of(number), TOKEN_IDS, LOSS_MASK, STATES)
            if place % BLOCK == 0:
                shard.commit()
        shard.commit()


def report_cost(run: RunFolder) -> Cost:
    """Has the command report on a run."""
    out = run.path / "report.html"
    command = [sys.executable, "-c", SCRIPT, "report", "--run", str(run.path), "--out", str(out)]
    begun = time.perf_counter()
    told = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    seconds = time.perf_counter() - begun
    return Cost(seconds, int(told.stdout.split()[-1]) * 1024, out.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
