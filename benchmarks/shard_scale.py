"""What a million samples cost: appending to many, opening them for a resume, and the metadata.

Samples of one token with a row of 16 bytes, so that the index is nearly all there is. Appending is
compared between a shard that has 1,000 samples and one that has 100,000, in turns. The metadata is
that of a shard with Kimi-K2.5's rows of 28,672 bfloat16, filled once, and counts all that the disk
holds beyond states, ids and masks.

    python benchmarks/shard_scale.py [--samples N] [--folder DIR]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from statetap_contract import CaptureSpec
from statetap_store import Provenance, RunScanner, SampleTable, ShardSet, ShardWriter, seal

NARROW = CaptureSpec("bench", "none", (1,), "post", 4, "bfloat16")
WIDE = CaptureSpec("bench", "none", (2, 30, 58), "post", 7168, "bfloat16")
PROVENANCE = Provenance("bench", "w0", "here", "none", "none", (1,))

TOKEN_IDS, LOSS_MASK = np.ones(1, np.int32), np.ones(1, np.uint8)
STATES = np.ones((1, NARROW.row_width), np.uint16)

#: Appends timed together, and committed together.
BLOCK = 500
NUM_BLOCKS = 20
#: Appending to 100,000 samples may cost this much of what it costs at 1,000.
APPEND_BOUND = 1.10
#: Seconds to open a million samples.
OPEN_BOUND = 1.0
#: Bytes of states whose metadata is weighed, and part of them that it may be.
WIDE_BYTES = 1_000_000_000
METADATA_BOUND = 0.005


def main() -> int:
    """Prints the figures; 1 when one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where to write")
    arguments = parser.parse_args()
    table = Table(title=f"shards of {arguments.samples:,} samples")
    for column in ("", "figure", "bound"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        verdicts = [
            append_row(table, *append_cost(folder, 1000, 100_000)),
            *open_rows(table, folder, arguments.samples),
            *(metadata_row(table, folder, is_sealed=is_sealed) for is_sealed in (False, True)),
        ]
    Console().print(table)
    print("all within their bounds" if all(verdicts) else "a figure misses its bound")
    return 0 if all(verdicts) else 1


def append_row(table: Table, few_s: float, many_s: float) -> bool:
    """Shows what appending costs."""
    ratio = many_s / few_s
    table.add_row("append at 1,000 samples", f"{few_s * 1e6:.1f} us", "")
    table.add_row("append at 100,000 samples, times that", f"{ratio:.3f}", f"{APPEND_BOUND:.2f}")
    return ratio <= APPEND_BOUND


def append_cost(folder: Path, num_few: int, num_many: int) -> tuple[float, float]:
    """Median seconds of an append to a shard of few samples, and to one of many."""
    many = filled(folder / "many.h5", num_many, NUM_BLOCKS * BLOCK)
    spent: dict[bool, list[float]] = {True: [], False: []}
    for block in range(NUM_BLOCKS):
        few = filled(folder / f"few-{block}.h5", num_few, BLOCK)
        for is_many in (True, False) if block % 2 else (False, True):
            writer = many if is_many else few
            begun = time.perf_counter()
            append(writer, writer.num_samples, BLOCK)
            spent[is_many].append((time.perf_counter() - begun) / BLOCK)
        few.close()
    many.close()
    for path in folder.iterdir():
        path.unlink()
    return statistics.median(spent[False]), statistics.median(spent[True])


def filled(path: Path, num_samples: int, num_more: int) -> ShardWriter:
    """A shard with samples, and room for more."""
    # A shard has room for a sample per 16 tokens.
    room = (num_samples + num_more) * 16 * (NARROW.row_bytes + 5)
    writer = ShardWriter.create(path, NARROW, PROVENANCE, room)
    append(writer, 0, num_samples)
    return writer


def append(writer: ShardWriter, first: int, num_samples: int) -> None:
    """Appends samples and commits them in batches."""
    for number in range(first, first + num_samples):
        # Keys as digests are: not in order.
        key = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
        writer.append(key, TOKEN_IDS, LOSS_MASK, STATES)
        if number % BLOCK == BLOCK - 1:
            writer.commit()
    writer.commit()


def open_rows(table: Table, folder: Path, num_samples: int) -> list[bool]:
    """Shows what opening costs whom, and how much memory the keys take."""
    filled(folder / "w0-00001.h5", num_samples, 0).close()
    verdicts = []
    for name, opening in OPENINGS.items():
        seconds = statistics.median(timed(opening, folder) for _ in range(5))
        bound = OPEN_BOUND * num_samples / 1e6
        table.add_row(name, f"{seconds:.2f} s", f"{bound:.2f} s")
        verdicts.append(seconds <= bound)
    table.add_row(
        "memory of a worker that has opened them", f"{memory(folder) / num_samples:.0f} B a sample"
    )
    (folder / "w0-00001.h5").unlink()
    return verdicts


def timed(opening: Callable[[Path], object], folder: Path) -> float:
    """Seconds that opening takes."""
    begun = time.perf_counter()
    opened = opening(folder)
    seconds = time.perf_counter() - begun
    del opened
    return seconds


def resumed_by(writer_name: str) -> Callable[[Path], object]:
    """Opening as the worker of this name does."""

    def opening(folder: Path) -> object:
        with ShardSet(folder, writer_name, 1 << 30, NARROW, PROVENANCE) as shards:
            return shards

    return opening


def _scan(folder: Path) -> object:
    scanner = RunScanner(folder)
    scanner.refresh()
    return scanner


OPENINGS: dict[str, Callable[[Path], object]] = {
    "open for a resume, its own worker": resumed_by("w0"),
    "open for a resume, another worker": resumed_by("w1"),
    "count, as status does": _scan,
    "list, as readers do": SampleTable.scan,
}


def memory(folder: Path) -> int:
    """Bytes that a process of its own keeps, having opened the shards as another worker."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import psutil, shard_scale, pathlib;"
        "rss = lambda: psutil.Process().memory_info().rss; before = rss();"
        "kept = shard_scale.resumed_by('w1')(pathlib.Path(sys.argv[2])); print(rss() - before)"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(folder)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # noqa: S603


def metadata_row(table: Table, folder: Path, *, is_sealed: bool) -> bool:
    """Shows what the disk holds beyond the payload of one shard of 1 GB."""
    path = folder / "wide.h5"
    num_tokens = 500
    states = np.ones((num_tokens, WIDE.row_width), np.uint16)
    with ShardWriter.create(path, WIDE, PROVENANCE, 1 << 34) as writer:
        while writer.num_tokens * WIDE.row_bytes < WIDE_BYTES:
            key = f"{writer.num_tokens:032x}"
            writer.append(key, np.ones(num_tokens, np.int32), np.ones(num_tokens, np.uint8), states)
            writer.commit()
        payload = writer.num_tokens * (WIDE.row_bytes + 5)
    if is_sealed:
        seal(path)
    part = (path.stat().st_blocks * 512 - payload) / payload
    path.unlink()
    name = f"metadata of a shard of {payload / 1e9:.1f} GB, {'' if is_sealed else 'not '}sealed"
    table.add_row(name, f"{part:.3%}", f"{METADATA_BOUND:.1%}")
    return part <= METADATA_BOUND


if __name__ == "__main__":
    sys.exit(main())
