"""Writing samples' files, a batch at a time, and proving files that are there."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from statetap_contract import CaptureSpec
from statetap_store import RunReader, SampleTable, storage_dtype
from statetap_store.disk_errors import stop_for
from statetap_store.file_bytes import PIECE_BYTES, make_folders

from statetap_producer.exporting.export_plan import ExportPlan
from statetap_producer.exporting.new_file import NewFile, hash_file, publish
from statetap_producer.exporting.norm_step import NormStep
from statetap_producer.exporting.trainer_format import SampleStream, TrainerFormat
from statetap_producer.exporting.vocabulary import check_tokens
from statetap_producer.terminal.counted import counted

#: Files of a batch are synced together: so many bytes, or so many files, which are open at once.
_BATCH_BYTES: Final = 64 << 20
_BATCH_FILES: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class SampleBatch:
    """Some samples and their files; goes to another process."""

    out: Path
    table: SampleTable
    names: tuple[str, ...]
    trainer: TrainerFormat
    step: NormStep
    #: Of the model, None where that is not known.
    vocab_size: int | None


def sample_batches(plan: ExportPlan, places: Iterable[int]) -> Iterator[SampleBatch]:
    """The samples at some places, ascending, in batches that are synced together."""
    table = plan.table
    num_tokens = table.num_tokens
    chosen: list[int] = []
    num_bytes = 0

    def batch() -> SampleBatch:
        return SampleBatch(
            out=plan.out,
            table=_with_own_shards(table, chosen),
            names=tuple(map(plan.sample_name, chosen)),
            trainer=plan.trainer,
            step=plan.step,
            vocab_size=plan.vocab_size,
        )

    for place in places:
        chosen.append(place)
        num_bytes += int(num_tokens[place]) * table.spec.row_bytes
        if num_bytes >= _BATCH_BYTES or len(chosen) == _BATCH_FILES:
            yield batch()
            chosen, num_bytes = [], 0
    if chosen:
        yield batch()


def _with_own_shards(table: SampleTable, places: list[int]) -> SampleTable:
    """Some samples, with their shards alone: a table of thousands is slow to hand over."""
    records = table.records[places]
    shards, records["shard"] = np.unique(records["shard"], return_inverse=True)
    return replace(
        table,
        records=records,
        shards=tuple(table.shards[number] for number in shards),
        layouts=tuple(table.layouts[number] for number in shards),
    )


def write_batch(batch: SampleBatch) -> tuple[str, ...]:
    """Writes the files of a batch, durably; returns their xxh128.

    A sample's checksums are proven when it is read. What fails leaves no file half-written.

    Raises:
        CheckError: kind ``payload-corrupt``, ``norm-differs``, ``not-finite`` or
            ``token-outside``.
        StopError: kind ``disk-full``, ``not-writable`` or ``shard-broken``.
    """
    spec = batch.table.spec
    written_spec = batch.step.written_spec(spec)
    buffer = _buffer(spec)
    files: list[NewFile] = []
    digests = []
    try:
        for folder in dict.fromkeys(PurePosixPath(name).parent for name in batch.names):
            make_folders(batch.out / folder, len(folder.parts))
        with _one_thread(), ExitStack() as stack, RunReader(batch.table) as reader:
            for place, name in enumerate(batch.names):
                key = batch.table[place].key
                blocks = batch.step.taken(key, reader.read_blocks(place, buffer), spec)
                token_ids, loss_mask = reader.read_prompt(place)
                check_tokens(key, token_ids, batch.vocab_size)
                sample = SampleStream(key, token_ids, loss_mask, blocks, written_spec)
                file = NewFile(batch.out / name)
                stack.callback(file.discard)
                files.append(file)
                batch.trainer.write(sample, file)
                digests.append(file.end())
            publish(files)
    except OSError as error:
        task = f"write {counted(len(batch.names), 'sample')}"
        raise stop_for(error, batch.out, task) from error
    return tuple(digests)


@contextmanager
def _one_thread() -> Iterator[None]:
    """The other cores have processes of their own, and a block is too small to be shared out."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@lru_cache(1)
def _buffer(spec: CaptureSpec) -> npt.NDArray[np.generic]:
    """Room for the rows that are handled at a time."""
    num_rows = max(1, PIECE_BYTES // spec.row_bytes)
    return np.empty((num_rows, spec.row_width), storage_dtype(spec.dtype))


@dataclass(frozen=True, slots=True)
class ProofBatch:
    """Files that are there, by name, and the xxh128 that they should have."""

    out: Path
    files: tuple[tuple[str, str], ...]


def prove_batch(batch: ProofBatch) -> tuple[bool, ...]:
    """Whether each file is, byte for byte, what it was when it was written."""
    return tuple(hash_file(batch.out / name) == digest for name, digest in batch.files)
