"""Exporting against a raw copy of the same bytes, and against the peers' own writers.

Ours reads samples from a shard, proves their checksums, writes a file each, and computes a
checksum of the file for the list of what is finished. A raw copy reads the same bytes from the
same shard and writes a file a sample. Where states were captured after the final norm, speculators
wants them converted. The peers' writers are ``safetensors.torch.save_file`` (speculators) and
``torch.save`` (SpecForge): once as a script would call them that reads the samples from the shard
into memory that is there already, without checksums; and once, for a look, with the tensors in
memory before the clock starts, so that they read nothing at all.

All sides take the same samples in turn, in batches, from the page cache, in one process each, and
sync every file at the end of its batch. Samples are as Kimi-K2.5's: rows of 28,672 bfloat16.

    python benchmarks/export_rate.py [--megabytes N] [--rounds N] [--folder DIR]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from statetap_contract import CaptureSpec
from statetap_producer.exporting.formats import FORMATS
from statetap_producer.exporting.model_norm import ModelNorm
from statetap_producer.exporting.norm_step import NormStep
from statetap_producer.exporting.write_samples import SampleBatch, write_batch
from statetap_store import Provenance, RunReader, Sample, SampleBuffer, SampleTable, ShardWriter
from statetap_store.torch_view import to_torch

SPEC = CaptureSpec("bench", "none", (2, 30, 58), "post", 7168, "bfloat16")
PROVENANCE = Provenance("bench", "w0", "here", "none", "none", (2, 30, 58))
#: Tokens of the shortest and the longest sample.
TOKENS = (200, 2000)
FINAL_NORM = ModelNorm(torch.linspace(0.5, 2, SPEC.hidden_size), 1e-5)
PIECE_BYTES = 1 << 20
#: Bytes of a batch, as ``export`` has them.
BATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Tensors:
    """A sample as the peers have it when they write."""

    ids: torch.Tensor
    mask: torch.Tensor
    #: [n, slots, hidden], for speculators.
    rows: torch.Tensor
    #: [1, n, layers * hidden] and [1, n, hidden], for the others.
    aux: torch.Tensor
    last: torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of rates."""

    trainer: str
    other: str
    #: Writes a batch: places in the table, folder.
    write: Callable[["Stage", Sequence[int], Path], None]
    #: Ours must reach this many times the other side's rate; None for a look.
    bound: float | None
    #: Whether ours turns last hidden states after the final norm into such before it.
    is_converted: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What all sides work on."""

    table: SampleTable
    reader: RunReader
    #: Room for the largest sample.
    buffer: SampleBuffer
    #: All samples, in memory.
    tensors: list[Tensors]

    def read(self, place: int) -> Tensors:
        """A sample as a script gets it from the shard; good until the next one is read."""
        return tensors_of(self.reader.read_into(place, self.buffer, check=False))


def main() -> int:
    """Prints the ratios; 1 when one is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=600, help="of states, for each side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; the disk that is measured")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    output = Table(title="rate of an export as a multiple of")
    for column in ("", "ratio", "rounds", "export GB/s", "bound"):
        output.add_column(column, justify="right" if column else "left")
    is_good = True
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        stage = make_stage(folder, arguments.megabytes * 1_000_000)
        for case in CASES:
            rounds = [measure(case, stage, folder, seed) for seed in range(arguments.rounds)]
            ratios = [other / ours for ours, other in rounds]
            ratio = statistics.median(ratios)
            num_bytes = int(stage.table.num_tokens.sum()) * SPEC.row_bytes
            rate = num_bytes / statistics.median(ours for ours, _ in rounds) / 1e9
            is_good &= case.bound is None or ratio >= case.bound
            output.add_row(
                f"{case.trainer}: {case.other}",
                f"{ratio:.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{rate:.2f}",
                "" if case.bound is None else f"{case.bound:.2f}",
            )
    Console().print(output)
    print("all within their bounds" if is_good else "a ratio is below its bound")
    return 0 if is_good else 1


def make_stage(folder: Path, num_bytes: int) -> Stage:
    """A shard of random samples, and the same in memory as the peers' writers want them."""
    generator = np.random.default_rng(0)
    states = generator.integers(1, 30_000, (TOKENS[1], SPEC.row_width), dtype=np.uint16)
    last = FINAL_NORM.apply(torch.randn(TOKENS[1], SPEC.hidden_size)).bfloat16()
    states[:, -SPEC.hidden_size :] = last.view(torch.int16).numpy().view(np.uint16)
    path = folder / "w0-00001.h5"
    with ShardWriter.create(path, SPEC, PROVENANCE, 2 * num_bytes + (1 << 30)) as writer:
        number = 0
        while num_bytes > 0:
            num_tokens = int(generator.integers(*TOKENS))
            ids = generator.integers(0, 160_000, num_tokens).astype("<i4")
            mask = np.ones(num_tokens, np.uint8)
            writer.append(f"{number:032x}", ids, mask, states[:num_tokens])
            num_bytes -= num_tokens * SPEC.row_bytes
            number += 1
        writer.commit()
    table = SampleTable.scan(path)
    reader = RunReader(table)
    buffer = SampleBuffer(SPEC, int(table.num_tokens.max()))
    kept = [tensors_of(reader.read(place)) for place in range(len(table))]
    return Stage(table, reader, buffer, kept)


def tensors_of(sample: Sample) -> Tensors:
    """Each tensor in memory of its own."""
    num_aux = len(SPEC.layers) * SPEC.hidden_size
    rows = to_torch(sample.states, SPEC.dtype)
    return Tensors(
        ids=torch.from_numpy(sample.token_ids).long(),
        mask=torch.from_numpy(sample.loss_mask).long(),
        rows=rows.view(len(rows), SPEC.num_slots, SPEC.hidden_size),
        aux=rows[None, :, :num_aux].contiguous(),
        last=rows[None, :, num_aux:].contiguous(),
    )


def measure(case: Case, stage: Stage, folder: Path, seed: int) -> tuple[float, float]:
    """Seconds of the export and seconds of the other side, for all samples."""
    sides = {True: folder / "ours", False: folder / "theirs"}
    spent = {True: 0.0, False: 0.0}
    for path in sides.values():
        path.mkdir()
    for number, places in enumerate(batches(stage.table)):
        # Whoever goes first finds other caches: they take turns.
        for is_ours in (True, False) if (number + seed) % 2 else (False, True):
            begun = time.perf_counter()
            if is_ours:
                write_batch(batch_of(case, stage.table, places, sides[True]))
            else:
                case.write(stage, places, sides[False])
            spent[is_ours] += time.perf_counter() - begun
    for path in sides.values():
        for file in path.rglob("*"):
            if file.is_file():
                file.unlink()
        for below in sorted(path.rglob("*"), reverse=True):
            below.rmdir()
        path.rmdir()
    # What this round left to be done must not meet the next one.
    os.sync()
    return spent[True], spent[False]


def batches(table: SampleTable) -> list[list[int]]:
    """Places in the table, as an export batches them."""
    found: list[list[int]] = [[]]
    num_bytes = 0
    for place, num_tokens in enumerate(table.num_tokens.tolist()):
        if num_bytes >= BATCH_BYTES:
            found.append([])
            num_bytes = 0
        found[-1].append(place)
        num_bytes += num_tokens * SPEC.row_bytes
    return found


def batch_of(case: Case, table: SampleTable, places: Sequence[int], out: Path) -> SampleBatch:
    """What ``export`` hands to one of its processes."""
    chosen = FORMATS[case.trainer]
    norm = chosen.norms[0]
    captured = "post" if case.is_converted else norm
    names = tuple(str(chosen.file_name(place, len(table))) for place in places)
    return SampleBatch(
        out=out,
        table=replace(
            table, spec=replace(SPEC, norm=captured), records=table.records[list(places)]
        ),
        names=names,
        trainer=chosen,
        step=NormStep(captured, norm, FINAL_NORM if case.is_converted else None),
        vocab_size=None,
    )


def sync_all(paths: Sequence[Path]) -> None:
    """Waits until files are on the disk, and their names."""
    for path in (*paths, paths[0].parent):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def copy_raw(stage: Stage, places: Sequence[int], folder: Path) -> None:
    """The bytes of each sample from the shard into a file, read and written in pieces."""
    table = stage.table
    buffer = memoryview(bytearray(PIECE_BYTES))
    source = os.open(table.shards[0], os.O_RDONLY)
    paths = [folder / f"{place}" for place in places]
    for place, path in zip(places, paths, strict=True):
        entry, layout = table[place], table.layout_of(place)
        tokens = entry.token_offset, entry.num_tokens
        target = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        for where in (layout.token_ids(*tokens), layout.loss_mask(*tokens), layout.states(*tokens)):
            for offset in range(where.offset, where.end, PIECE_BYTES):
                piece = buffer[: where.end - offset]
                num_read = os.preadv(source, [piece], offset)
                if num_read != os.write(target, piece[:num_read]):
                    raise OSError(f"{path} was not written whole")
        os.close(target)
    os.close(source)
    sync_all(paths)


def save_file_of(tensors: Tensors, path: Path) -> None:
    """What a vLLM connector calls for speculators."""
    save_file({"hidden_states": tensors.rows, "token_ids": tensors.ids}, path)


def torch_save_of(tensors: Tensors, path: Path) -> None:
    """What SpecForge's script calls, without its search for NaN."""
    content = {
        "input_ids": tensors.ids,
        "loss_mask": tensors.mask,
        "hidden_state": tensors.last,
        "aux_hidden_state": tensors.aux,
    }
    torch.save(content, path)


def save_all(
    stage: Stage,
    places: Sequence[int],
    folder: Path,
    *,
    save: Callable[[Tensors, Path], None],
    is_read: bool,
) -> None:
    """A file a sample by a peer's writer."""
    paths = [folder / f"{place}" for place in places]
    for place, path in zip(places, paths, strict=True):
        save(stage.read(place) if is_read else stage.tensors[place], path)
    sync_all(paths)


def peer_case(trainer: str, words: str, save: Callable[[Tensors, Path], None]) -> Iterator[Case]:
    """A peer's writer, reading and not."""
    yield Case(trainer, words, partial(save_all, save=save, is_read=True), 1.0)
    yield Case(trainer, f"{words} from memory", partial(save_all, save=save, is_read=False), None)


CASES = (
    Case("speculators", "a raw copy", copy_raw, 0.70),
    Case("speculators", "a raw copy, converted", copy_raw, 0.70, is_converted=True),
    *peer_case("speculators", "save_file", save_file_of),
    Case("specforge", "a raw copy", copy_raw, None),
    *peer_case("specforge", "torch.save", torch_save_of),
)


if __name__ == "__main__":
    sys.exit(main())
