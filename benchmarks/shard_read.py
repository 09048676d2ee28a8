"""Reading a shard against the page cache's own speed, and against one file a sample.

The limit is ``preadv`` of the same bytes into the same memory, from the page cache, so that nothing
hides what our code costs. The peers are raced from the disk, since datasets are larger than memory:
their files and ours are dropped from the page cache before each read. Every sample is read by all
sides in turn, and ends in a buffer that was there before, as a batch is: what a peer's loader gives
is copied there, which for safetensors, whose tensors are mapped files, is when bytes are read.

Wide samples are as Kimi-K2.5's, rows of 28,672 bfloat16. Opening is measured with many small ones:
a reader lists all samples; with a file a sample the folder is listed and each file opened, since
there is no other way to know how long the samples are.

    python benchmarks/shard_read.py [--rounds N] [--folder DIR]
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from statetap_contract import CaptureSpec
from statetap_store import Provenance, RunReader, SampleBuffer, SampleTable, ShardWriter, seal
from statetap_store.torch_view import to_torch

WIDE = CaptureSpec("bench", "none", (2, 30, 58), "post", 7168, "bfloat16")
NARROW = CaptureSpec("bench", "none", (2, 30, 58), "post", 64, "bfloat16")
PROVENANCE = Provenance("bench", "w0", "here", "none", "none", (2, 30, 58))
#: Tokens of all wide samples together: 1.2 GB a side.
WIDE_TOKENS = 20_000
NUM_SMALL = 10_000
READ_BOUND = 0.95

Arrays = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint16]]


def main() -> int:
    """Prints the ratios; 1 when one is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--folder", type=Path, help="where to write; the disk that is measured")
    arguments = parser.parse_args()
    # As in a process that loads data for a trainer.
    torch.set_num_threads(1)
    table = Table(title="speed of a shard as a multiple of")
    for column in ("", "ratio", "rounds", "bound"):
        table.add_column(column, justify="right" if column else "left")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        wide = lengths(WIDE_TOKENS, (200, 5000))
        rows = [
            *wide_ratios(Path(name) / "wide", WIDE, wide, arguments.rounds),
            *small_ratios(Path(name) / "small", NARROW, [50] * NUM_SMALL, arguments.rounds // 3),
        ]
    is_good = True
    for title, ratios, bound in rows:
        ratio = statistics.median(ratios)
        is_good &= bound is None or ratio >= bound
        table.add_row(
            title,
            f"{ratio:.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            "" if bound is None else f"{bound:.2f}",
        )
    Console().print(table)
    print("all within their bounds" if is_good else "a ratio is below its bound")
    return 0 if is_good else 1


Ratios = tuple[str, list[float], float | None]


def wide_ratios(
    folder: Path, spec: CaptureSpec, samples: Sequence[int], num_rounds: int
) -> list[Ratios]:
    """Random reads of large samples, from the page cache and from the disk."""
    write_all(folder, spec, samples)
    sides, buffer = readers(folder, spec, samples)
    plain = os.open(folder / "plain", os.O_RDONLY)
    starts = plain_starts(spec, samples)

    def read_plain(number: int) -> None:
        sample = buffer.sample("", samples[number])
        position = starts[number]
        for array in (sample.states, sample.token_ids, sample.loss_mask):
            data, done = array.reshape(-1).view(np.uint8).data, 0
            while done < len(data):
                done += os.preadv(plain, [data[done:]], position + done)
            position += done

    def drop(_: int) -> None:
        for path in folder.iterdir():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    warm = race({**sides, "preadv": read_plain}, len(samples), num_rounds)
    os.sync()  # what is not on the disk yet cannot be dropped
    cold = race(sides, len(samples), num_rounds, drop)
    os.close(plain)
    return [
        ("random reads, cached: preadv", ratio(warm, "preadv", "shard"), READ_BOUND),
        ("the same, checksums proven", ratio(warm, "preadv", "checked"), None),
        ("random reads, cached: safetensors", ratio(warm, "safetensors", "shard"), None),
        ("random reads, cached: torch.load", ratio(warm, "torch.load", "shard"), None),
        ("random reads, disk: safetensors", ratio(cold, "safetensors", "shard"), 1.0),
        ("the same, checksums proven", ratio(cold, "safetensors", "checked"), None),
        ("random reads, disk: torch.load", ratio(cold, "torch.load", "shard"), 1.0),
    ]


def readers(
    folder: Path, spec: CaptureSpec, samples: Sequence[int]
) -> tuple[dict[str, Callable[[int], object]], SampleBuffer]:
    """What brings one sample into a buffer, by name, and that buffer."""
    reader = RunReader(SampleTable.scan(folder / "w0-00001.h5"))
    buffer = SampleBuffer(spec, max(samples))

    def copy(tensors: dict[str, torch.Tensor]) -> None:
        sample = buffer.sample("", len(tensors["input_ids"]))
        torch.from_numpy(sample.token_ids).copy_(tensors["input_ids"])
        torch.from_numpy(sample.loss_mask).copy_(tensors["loss_mask"])
        to_torch(sample.states, spec.dtype).copy_(tensors["states"])

    sides: dict[str, Callable[[int], object]] = {
        "shard": lambda number: reader.read_into(number, buffer, check=False),
        "checked": lambda number: reader.read_into(number, buffer),
        "torch.load": lambda number: copy(torch.load(folder / f"{number}.pt")),
        "safetensors": lambda number: copy(load_file(folder / f"{number}.safetensors")),
    }
    return sides, buffer


def small_ratios(
    folder: Path, spec: CaptureSpec, samples: Sequence[int], num_rounds: int
) -> list[Ratios]:
    """Opening many small samples, and reading them."""
    write_all(folder, spec, samples)

    def open_torch(_: int) -> list[int]:
        # There is no other way to a tensor's shape than to load the file.
        return [len(torch.load(path, mmap=True)["input_ids"]) for path in folder.glob("*.pt")]

    def open_safetensors(_: int) -> list[int]:
        found = []
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                found.append(file.get_slice("input_ids").get_shape()[0])
        return found

    def open_shard(_: int) -> list[int]:
        return [entry.num_tokens for entry in SampleTable.scan(folder / "w0-00001.h5")]

    sides: dict[str, Callable[[int], object]] = {
        "shard": open_shard,
        "torch.load": open_torch,
        "safetensors": open_safetensors,
    }
    opening = race(sides, 1, num_rounds)
    reading = race(readers(folder, spec, samples)[0], len(samples), num_rounds)
    many = f"{len(samples):,} small samples"
    return [
        (f"opening {many}: safetensors", ratio(opening, "safetensors", "shard"), 1.0),
        (f"opening {many}: torch.load", ratio(opening, "torch.load", "shard"), 1.0),
        (f"reading {many}: safetensors", ratio(reading, "safetensors", "checked"), 1.0),
        (f"reading {many}: torch.load", ratio(reading, "torch.load", "checked"), 1.0),
    ]


def race(
    sides: dict[str, Callable[[int], object]],
    num_samples: int,
    num_rounds: int,
    before_each: Callable[[int], None] = lambda _: None,
) -> dict[str, list[float]]:
    """Seconds of each side in each round; sides and samples in another order every time."""
    generator = random.Random(0)
    for side in sides.values():  # the first time finds cold memory
        for number in range(num_samples):
            side(number)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(num_rounds):
        spent = dict.fromkeys(sides, 0.0)
        for number in generator.sample(range(num_samples), num_samples):
            for name in generator.sample(list(sides), len(sides)):
                before_each(number)
                begun = time.perf_counter()
                sides[name](number)
                spent[name] += time.perf_counter() - begun
        for name, seconds in spent.items():
            times[name].append(seconds)
    return times


def ratio(times: dict[str, list[float]], other: str, ours: str) -> list[float]:
    """How many times as long the other side took, round by round."""
    return [theirs / mine for theirs, mine in zip(times[other], times[ours], strict=True)]


def plain_starts(spec: CaptureSpec, samples: Sequence[int]) -> list[int]:
    """Where each sample lies in the plain file: at pages, as most of a shard's states do."""
    pages = [-(-num_tokens * (spec.row_bytes + 5) // 4096) for num_tokens in samples]
    return [4096 * start for start in accumulate(pages, initial=0)][:-1]


def lengths(num_tokens: int, bounds: tuple[int, int]) -> list[int]:
    """Token counts of samples that have about ``num_tokens`` tokens together."""
    generator = random.Random(0)
    found: list[int] = []
    while sum(found) < num_tokens:
        found.append(generator.randint(*bounds))
    return found


def write_all(folder: Path, spec: CaptureSpec, samples: Sequence[int]) -> None:
    """The same samples as a shard, as plain bytes, and as files of both peers' kinds."""
    folder.mkdir()
    states = np.random.default_rng(0).integers(
        1, 30_000, (max(samples), spec.row_width), dtype=np.uint16
    )
    path = folder / "w0-00001.h5"
    with (
        ShardWriter.create(path, spec, PROVENANCE, 1 << 33) as writer,
        (folder / "plain").open("wb") as plain,
    ):
        for number, (num_tokens, start) in enumerate(
            zip(samples, plain_starts(spec, samples), strict=True)
        ):
            arrays: Arrays = (
                np.zeros(num_tokens, np.int32),
                np.ones(num_tokens, np.uint8),
                states[:num_tokens],
            )
            writer.append(f"{number:032x}", *arrays)
            plain.seek(start)
            for array in (arrays[2], arrays[0], arrays[1]):
                plain.write(array.data)
            tensors = {
                "input_ids": torch.from_numpy(arrays[0]),
                "loss_mask": torch.from_numpy(arrays[1]),
                "states": to_torch(arrays[2], spec.dtype).clone(),
            }
            torch.save(tensors, folder / f"{number}.pt")
            save_file(tensors, folder / f"{number}.safetensors")
    seal(path)


if __name__ == "__main__":
    sys.exit(main())
