"""Reading samples, also while they are being written."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from statetap_contract import CaptureSpec, CheckError
from statetap_store import (
    Provenance,
    RunScanner,
    ShardReader,
    ShardWriter,
    storage_dtype,
)
from statetap_store.torch_view import to_torch

from .conftest import num_open_in

Sampler = Callable[..., tuple[str, Any, Any, Any]]

#: Appends and commits one sample for each line it reads, and answers with a line.
WRITER = """
import runpy, sys
from pathlib import Path
from statetap_store import ShardWriter
numbered_sample = runpy.run_path(sys.argv[2])["numbered_sample"]
with ShardWriter.open(Path(sys.argv[1])) as writer:
    for line in sys.stdin:
        writer.append(*numbered_sample(int(line)))
        writer.commit()
        print("committed", flush=True)
"""


def test_facts_of_a_shard(shard: Path, spec: CaptureSpec, provenance: Provenance) -> None:
    """Spec and provenance come back as they were given."""
    with ShardReader(shard) as reader:
        assert reader.spec == spec
        assert reader.provenance == provenance
        assert reader.path == shard
        assert not reader.is_sealed
        entry = reader.samples[3]
    with h5py.File(shard) as hdf5:
        row = hdf5["index"][3]
        assert entry.path == shard
        assert (entry.sequence, entry.time_ns) == (3, row["time_ns"])
        assert (entry.token_offset, entry.num_tokens) == (row["token_offset"], row["num_tokens"])
        assert entry.states_xxh3 == row["states_xxh3"]


def test_samples_appear_while_another_process_writes(shard: Path, numbered_sample: Sampler) -> None:
    """Whatever the writer has committed, a reader sees and reads right, and so does a scanner."""
    script = str(Path(__file__).with_name("endless_writer.py"))
    scanner = RunScanner(shard.parent)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(shard), script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(10, 60):
            writer.stdin.write(f"{number}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "committed\n"
            scanner.refresh()
            assert scanner.num_samples == number + 1
            with ShardReader(shard) as reader:
                assert len(reader.samples) == number + 1
                sample = reader.read(reader.samples[-1])
                assert np.array_equal(sample.states, numbered_sample(number)[3])
        writer.stdin.close()
    assert writer.returncode == 0


@pytest.mark.parametrize("dataset", ["states", "input_ids", "loss_mask"])
def test_changed_payload_is_refused(shard: Path, dataset: str) -> None:
    """One wrong bit in any part of a sample is an error, unless the caller does not want it."""
    with ShardReader(shard) as reader:
        entry = reader.samples[5]
        with h5py.File(shard) as hdf5:
            item_bytes = hdf5[dataset].nbytes // hdf5[dataset].shape[0]
            position = hdf5[dataset].id.get_offset() + entry.token_offset * item_bytes
        with shard.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 1]))
        with pytest.raises(CheckError, match=f"{entry.key}.*checksum.*statetap verify") as error:
            reader.read(entry)
        assert error.value.kind == "payload-corrupt"
        assert reader.read(entry, check=False).key == entry.key
        assert reader.read(reader.samples[4]).key == reader.samples[4].key


def test_entry_of_another_shard_is_refused(shard: Path) -> None:
    """An entry that is not of this shard is a mistake of the caller."""
    with ShardReader(shard) as reader:
        entry = reader.samples[0]
        for wrong in (replace(entry, key="f" * 32), replace(entry, sequence=99)):
            with pytest.raises(ValueError, match="is not row"):
                reader.read(wrong)


def test_reading_does_not_look_through_the_index(shard: Path) -> None:
    """To see that an entry is its own, a reader of many samples takes no memory for them."""
    with ShardReader(shard) as reader:
        entry = reader.samples[7]
        many = np.resize(reader.samples.records, 200_000)
        many["sequence"] = np.arange(len(many))
        reader.samples = replace(reader.samples, records=many)
        tracemalloc.start()
        try:
            sample = reader.read(entry)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sample.key == entry.key
        assert peak < 100_000, "one column has 1.6 MB"
        with pytest.raises(ValueError, match="is not row"):
            reader.read(replace(entry, sequence=-1))


def test_pickled_reader_opens_the_shard_itself(shard: Path, numbered_sample: Sampler) -> None:
    """In a spawned process it has the same samples, whatever was appended, and its own file."""
    reader = ShardReader(shard)
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        samples = list(pool.map(reader.read, reader.samples))
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 our own
    reader.close()
    with copy:
        assert list(copy.samples) == list(reader.samples)
        assert copy.read(copy.samples[3]).key == f"{3:032x}"
    assert [sample.key for sample in samples] == [f"{number:032x}" for number in range(10)]
    for number, sample in enumerate(samples):
        assert np.array_equal(sample.states, numbered_sample(number)[3])


def test_read_arrays_are_the_callers_own(shard: Path) -> None:
    """Two reads share no memory and may be written to."""
    with ShardReader(shard) as reader:
        first, second = (reader.read(reader.samples[2]) for _ in range(2))
    first.states[...] = 0
    first.token_ids[...] = 0
    assert second.states.any()
    assert second.token_ids.any()


def test_nothing_stays_open(shard: Path) -> None:
    """Closed readers and refused shards leave no descriptor behind."""
    ShardReader(shard).close()
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(CheckError):
        ShardReader(shard)
    shard.write_bytes(b"no HDF5")
    with pytest.raises(CheckError):
        ShardReader(shard)
    assert num_open_in(shard.parent) == 0


@pytest.mark.parametrize(
    ("dtype", "bits", "value"),
    [
        ("bfloat16", b"\xc0\x3f", 1.5),
        ("float16", b"\x00\x3e", 1.5),
        ("float32", b"\x00\x00\xc0\x3f", 1.5),
    ],
)
def test_torch_view_shares_memory(dtype: str, bits: bytes, value: float) -> None:
    """A tensor of the right dtype over the same memory."""
    states = np.frombuffer(bytearray(bits * 6), storage_dtype(dtype)).reshape(2, 3)
    tensor = to_torch(states, dtype)
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.tolist() == [[value] * 3] * 2
    tensor[0, 0] = 0
    assert states[0, 0] == 0


def test_store_needs_no_torch() -> None:
    """Importing the store does not import torch."""
    command = "import sys, statetap_store; print('torch' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_unknown_dtype() -> None:
    """A dtype that states cannot have is refused."""
    with pytest.raises(ValueError, match="float8"):
        storage_dtype("float8")


def test_reader_needs_no_lock(shard: Path) -> None:
    """A shard that a writer holds can be read in the same process too."""
    with ShardWriter.open(shard), ShardReader(shard) as reader:
        assert len(reader.samples) == 10
