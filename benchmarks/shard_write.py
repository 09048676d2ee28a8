"""Appending to a shard against the disk's own speed, and against one file a sample.

The limit is ``pwrite`` of the same bytes into one file. Both sides take every sample in turn, so
that whatever else the machine does meets both. Samples are as Kimi-K2.5's: rows of 28,672 bfloat16.
The shard computes its checksums; files of ``torch.save`` and safetensors have none.

    python benchmarks/shard_write.py [--rounds N] [--folder DIR]
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardWriter
from statetap_store.torch_view import to_torch

SPEC = CaptureSpec("bench", "none", (2, 30, 58), "post", 7168, "bfloat16")
PROVENANCE = Provenance("bench", "w0", "here", "none", "none", (2, 30, 58))
#: Bytes that each side writes in a round: less than the kernel starts to write back by itself.
ROUND_BYTES = 700_000_000
SHARD_BYTES = 1 << 33

#: Takes one sample: its number, token ids, mask, states.
Side = Callable[[int, npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint16]], None]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison."""

    name: str
    #: Tokens of the shortest and the longest sample.
    tokens: tuple[int, int]
    #: Samples between two syncs; 0 for none.
    batch: int
    #: The shard must reach this many times the speed of the other side.
    bound: float


CASES = (
    Case("pwrite, 200 to 5,000 tokens, no sync", (200, 5000), 0, 0.90),
    Case("pwrite, 200 to 5,000 tokens, a sync a sample", (200, 5000), 1, 0.85),
    Case("pwrite, 20 tokens, a sync for 32 samples", (20, 20), 32, 0.80),
    Case("torch.save, a file a sample, no sync", (200, 5000), 0, 1.0),
    Case("safetensors, a file a sample, no sync", (200, 5000), 0, 1.0),
)


def main() -> int:
    """Prints the ratios; 1 when one is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; the disk that is measured")
    arguments = parser.parse_args()
    table = Table(title="speed of a shard as a multiple of")
    for column in ("", "ratio", "rounds", "shard GB/s", "bound"):
        table.add_column(column, justify="right" if column else "left")
    is_good = True
    for case in CASES:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            rounds = [measure(case, Path(folder), seed) for seed in range(arguments.rounds)]
        ratios = [other / ours for ours, other, _ in rounds]
        ratio = statistics.median(ratios)
        rate = statistics.median(num_bytes / ours / 1e9 for ours, _, num_bytes in rounds)
        is_good &= ratio >= case.bound
        table.add_row(
            case.name,
            f"{ratio:.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{rate:.2f}",
            f"{case.bound:.2f}",
        )
    Console().print(table)
    print("all within their bounds" if is_good else "a ratio is below its bound")
    return 0 if is_good else 1


def measure(
    case: Case, folder: Path, seed: int, round_bytes: int = ROUND_BYTES
) -> tuple[float, float, int]:
    """Seconds of the shard, seconds of the other side, and the bytes that each of them wrote."""
    samples = list(sample_lengths(case.tokens, seed, round_bytes))
    states = make_states(max(samples))
    with ExitStack() as stack:
        shard, sync_shard = stack.enter_context(into_shard(folder / "w0-00001.h5"))
        other, sync_other = stack.enter_context(OTHERS[case.name.split(",")[0]](folder))
        spent = {True: 0.0, False: 0.0}
        blocks = max(1, case.batch)
        for start in range(0, len(samples), blocks):
            # Whoever goes first finds other caches: they take turns.
            for is_ours in (True, False) if start // blocks % 2 else (False, True):
                begun = time.perf_counter()
                for number, num_tokens in enumerate(samples[start : start + blocks], start):
                    (shard if is_ours else other)(
                        number,
                        np.zeros(num_tokens, np.int32),
                        np.ones(num_tokens, np.uint8),
                        states[:num_tokens],
                    )
                if case.batch:
                    (sync_shard if is_ours else sync_other)()
                spent[is_ours] += time.perf_counter() - begun
    for path in folder.iterdir():
        path.unlink()
    # What this round left to be written must not meet the next one.
    os.sync()
    return spent[True], spent[False], sum(samples) * (SPEC.row_bytes + 5)


def sample_lengths(tokens: tuple[int, int], seed: int, num_bytes: int) -> Iterator[int]:
    """Token counts of samples that make up ``num_bytes``."""
    generator = random.Random(seed)
    while num_bytes > 0:
        num_tokens = generator.randint(*tokens)
        num_bytes -= num_tokens * SPEC.row_bytes
        yield num_tokens


def make_states(num_tokens: int) -> npt.NDArray[np.uint16]:
    """Finite bfloat16 bit patterns, [num_tokens, row_width]."""
    generator = np.random.default_rng(0)
    return generator.integers(1, 30_000, (num_tokens, SPEC.row_width), dtype=np.uint16)


@contextmanager
def into_shard(path: Path) -> Iterator[tuple[Side, Callable[[], None]]]:
    """A shard's append and its commit."""
    writer = ShardWriter.create(path, SPEC, PROVENANCE, SHARD_BYTES)

    def append(
        number: int,
        token_ids: npt.NDArray[np.int32],
        loss_mask: npt.NDArray[np.uint8],
        states: npt.NDArray[np.uint16],
    ) -> None:
        writer.append(f"{number:032x}", token_ids, loss_mask, states)

    yield append, writer.commit
    writer.close()


@contextmanager
def into_plain_file(folder: Path) -> Iterator[tuple[Side, Callable[[], None]]]:
    """The same bytes, one after another, and fdatasync."""
    fd = os.open(folder / "plain", os.O_CREAT | os.O_WRONLY, 0o644)
    position = 0

    def write(_: int, *arrays: npt.NDArray[np.generic]) -> None:
        nonlocal position
        for array in arrays:
            data = array.reshape(-1).view(np.uint8).data
            while data:
                num_written = os.pwrite(fd, data, position)
                position += num_written
                data = data[num_written:]

    yield write, partial(os.fdatasync, fd)
    os.close(fd)


@contextmanager
def into_files(
    folder: Path, save: Callable[[dict[str, torch.Tensor], Path], None]
) -> Iterator[tuple[Side, Callable[[], None]]]:
    """A file a sample, as trainers keep them."""

    def write(number: int, *arrays: npt.NDArray[np.generic]) -> None:
        token_ids, loss_mask, states = arrays
        sample = {
            "input_ids": torch.from_numpy(token_ids),
            "loss_mask": torch.from_numpy(loss_mask),
            "states": to_torch(states, SPEC.dtype),
        }
        save(sample, folder / f"{number:08d}")

    yield write, os.sync


OTHERS: dict[str, Callable[[Path], AbstractContextManager[tuple[Side, Callable[[], None]]]]] = {
    "pwrite": into_plain_file,
    "torch.save": partial(into_files, save=torch.save),
    "safetensors": partial(into_files, save=save_file),
}


if __name__ == "__main__":
    sys.exit(main())
