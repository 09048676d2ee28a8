"""Inspection: what shards say of themselves, and a look at the first samples in them."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import CaptureSpec, CheckError

from statetap_store.dtypes import as_float32, storage_dtype
from statetap_store.file_bytes import read_range
from statetap_store.index_faults import damaged_rows
from statetap_store.index_row import ROW_DTYPE, STATE_VOID, IndexRow, Rows, is_repeated
from statetap_store.layout import token_bytes
from statetap_store.provenance import Provenance
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import ShardIndex
from statetap_store.shard_report import Fault

#: Samples, rows of the first one, and elements of each of its slots that are looked at.
_NUM_SAMPLES: Final = 5
_NUM_ROWS: Final = 3
_NUM_VALUES: Final = 4

#: How ``stat`` counts what a file takes on the disk.
_BLOCK_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """One shard."""

    path: Path
    spec: CaptureSpec
    provenance: Provenance
    #: ISO 8601, UTC.
    created: str
    is_sealed: bool
    #: Samples, their tokens, and their bytes of states, ids and masks.
    num_samples: int
    num_tokens: int
    num_bytes: int
    #: What the file takes on the disk, and its length.
    disk_bytes: int
    file_bytes: int
    #: Rows that hold no sample, and rows that are damaged.
    num_void: int
    num_damaged: int
    #: Samples whose key an earlier row has, of this shard or one before it.
    num_repeated: int


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """One of the first samples."""

    key: str
    path: Path
    num_tokens: int
    #: Tokens the loss is taken over; None where the loss mask is damaged or cannot be read.
    num_loss_tokens: int | None
    #: When it was appended, nanoseconds since 1970.
    time_ns: int


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One slot of one of the first rows."""

    row: int
    slot: str
    #: Its first elements, exactly as they are stored.
    values: tuple[float, ...]
    #: Euclidean norm of the slot.
    norm: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in some shards."""

    #: By name, as readers take them.
    shards: tuple[ShardFacts, ...]
    #: Why others cannot be read, or the first sample of one of these.
    unreadable: tuple[Fault, ...]
    #: int64 [n], the tokens of each sample, each key once.
    lengths: npt.NDArray[np.int64]
    #: Of the first shard that holds any.
    first_samples: tuple[SampleFacts, ...]
    #: Of the first sample, by row, then in row order; none where its states cannot be read.
    first_rows: tuple[SlotRow, ...]


def inspect_shards(paths: Sequence[Path]) -> Inspection:
    """Reads headers and indexes, and the first samples. The shards may be growing.

    Raises:
        MissingError: kind ``shard-missing`` or ``shard-unreachable``.
    """
    shards: list[ShardFacts] = []
    failed: list[Fault] = []
    keys = [np.empty(0, ROW_DTYPE["key"])]
    lengths = [np.empty(0, np.int64)]
    first_samples: tuple[SampleFacts, ...] = ()
    first_rows: tuple[SlotRow, ...] = ()
    for path in sorted(paths, key=lambda path: (path.name, path)):
        try:
            with ShardFile.open(path) as shard:
                index = shard.load_index()
                shards.append(_shard_facts(shard, index))
                if not first_samples and len(index.samples):
                    first_samples = tuple(_first_samples(shard, index.samples))
                    try:
                        first_rows = tuple(_first_rows(shard, IndexRow.of(index.samples[0])))
                    except OSError as error:
                        failed.append(_unreadable_sample(first_samples[0], error))
        except CheckError as error:
            failed.append(Fault(error.kind, None, error.message))
            continue
        keys.append(index.samples["key"].copy())
        lengths.append(index.samples["num_tokens"].astype(np.int64))
    is_again = is_repeated(np.concatenate(keys))
    ends = np.cumsum([shard.num_samples for shard in shards], dtype=np.int64)
    num_repeated = [int(part.sum()) for part in np.split(is_again, ends)[:-1]]
    return Inspection(
        shards=tuple(
            replace(shard, num_repeated=number)
            for shard, number in zip(shards, num_repeated, strict=True)
        ),
        unreadable=tuple(failed),
        lengths=np.concatenate(lengths)[~is_again],
        first_samples=first_samples,
        first_rows=first_rows,
    )


def _shard_facts(shard: ShardFile, index: ShardIndex) -> ShardFacts:
    """All but what it takes other shards to know."""
    header, status = shard.header, os.fstat(shard.fd)
    num_tokens = int(index.samples["num_tokens"].sum())
    return ShardFacts(
        path=shard.path,
        spec=header.spec,
        provenance=header.provenance,
        created=header.created,
        is_sealed=header.is_sealed,
        num_samples=len(index.samples),
        num_tokens=num_tokens,
        num_bytes=num_tokens * token_bytes(header.spec),
        disk_bytes=status.st_blocks * _BLOCK_BYTES,
        file_bytes=status.st_size,
        num_void=int((index.rows["state"] == STATE_VOID).sum()),
        num_damaged=len(damaged_rows(shard, index)),
        num_repeated=0,
    )


def _unreadable_sample(sample: SampleFacts, error: OSError) -> Fault:
    message = f"sample {sample.key} in {sample.path} cannot be read ({error.strerror})"
    return Fault("payload-unreadable", sample.key, message)


def _first_samples(shard: ShardFile, samples: Rows) -> Iterator[SampleFacts]:
    for row in map(IndexRow.of, samples[:_NUM_SAMPLES]):
        num_loss_tokens = _num_loss_tokens(shard, row)
        yield SampleFacts(row.key, shard.path, row.num_tokens, num_loss_tokens, row.time_ns)


def _num_loss_tokens(shard: ShardFile, row: IndexRow) -> int | None:
    where = shard.header.layout.loss_mask(row.token_offset, row.num_tokens)
    with suppress(OSError):
        mask = read_range(shard.fd, where)
        if xxhash.xxh3_64_intdigest(mask) == row.mask_xxh3:
            return mask.count(1)
    return None


def _first_rows(shard: ShardFile, row: IndexRow) -> Iterator[SlotRow]:
    spec = shard.header.spec
    num_rows = min(_NUM_ROWS, row.num_tokens)
    data = read_range(shard.fd, shard.header.layout.states(row.token_offset, num_rows))
    whole = data[: len(data) - len(data) % spec.row_bytes]
    states = as_float32(np.frombuffer(whole, storage_dtype(spec.dtype)), spec.dtype)
    for number, slots in enumerate(states.reshape(-1, spec.num_slots, spec.hidden_size)):
        for slot, values in zip(spec.slot_names, slots, strict=True):
            norm = float(np.linalg.norm(values.astype(np.float64)))
            yield SlotRow(number, slot, tuple(values[:_NUM_VALUES].tolist()), norm)
