"""Random access to the samples of many shards."""

import errno
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec, CheckError, MissingError
from statetap_store import (
    Provenance,
    RunReader,
    Sample,
    SampleBuffer,
    SampleTable,
    ShardReader,
    ShardSet,
    ShardWriter,
    seal,
    storage_dtype,
)
from statetap_store.index_row import IndexRow
from statetap_store.shard_file import ShardFile

from .conftest import num_open_in

Sampler = Callable[..., tuple[str, Any, Any, Any]]

SCRIPT = str(Path(__file__).with_name("endless_writer.py"))


@pytest.fixture
def folder(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> Path:
    """Samples 0 to 59 in shards of 60 tokens, all but the last one sealed."""
    folder = tmp_path / "shards"
    with ShardSet(folder, "w0", 60 * 53, spec, provenance) as shards:
        for number in range(60):
            shards.append(*numbered_sample(number))
    assert len(list(folder.glob("*.h5"))) > 6
    return folder


@pytest.fixture
def reader(folder: Path) -> Iterator[RunReader]:
    with RunReader(SampleTable.scan(folder)) as reader:
        yield reader


@pytest.fixture
def is_expected(numbered_sample: Sampler) -> Callable[[Sample], bool]:
    """Whether a sample is, bit by bit, what was appended under its key."""

    def compare(sample: Sample) -> bool:
        _, token_ids, loss_mask, states = numbered_sample(int(sample.key, 16))
        return (
            np.array_equal(sample.token_ids, token_ids)
            and np.array_equal(sample.loss_mask, loss_mask)
            and np.array_equal(sample.states, states)
        )

    return compare


def change(path: Path, dataset: str, token: int) -> None:
    """Flips a bit in one token's part of a dataset."""
    with h5py.File(path) as hdf5:
        item_bytes = hdf5[dataset].nbytes // hdf5[dataset].shape[0]
        position = hdf5[dataset].id.get_offset() + token * item_bytes
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_by_place_key_and_entry(reader: RunReader, is_expected: Callable[[Sample], bool]) -> None:
    """All three ways, in random order, lead to the sample that was stored."""
    order = np.random.default_rng(1).permutation(len(reader.table))
    assert len(order) == 60
    for place in order:
        entry = reader.table[place]
        for sample in (place, int(place) - 60, entry.key, entry):
            found = reader.read(sample)
            assert found.key == entry.key
            assert is_expected(found)


def test_what_is_not_listed(reader: RunReader) -> None:
    """An unknown key, a place past the end, another table's entry: each is told apart."""
    with pytest.raises(MissingError, match=f"no sample {'f' * 32} among the 60") as error:
        reader.read("f" * 32)
    assert error.value.kind == "sample-missing"
    with pytest.raises(IndexError):
        reader.read(60)
    entry = reader.table[3]
    for wrong in (replace(entry, key="f" * 32), replace(entry, sequence=entry.sequence + 1)):
        with pytest.raises(ValueError, match=f"{wrong.key}, row .* not of this table"):
            reader.read(wrong)


@pytest.mark.parametrize("dataset", ["states", "input_ids", "loss_mask"])
def test_changed_payload_is_refused(reader: RunReader, spec: CaptureSpec, dataset: str) -> None:
    """One wrong bit is an error that names sample and shard, unless nobody asked; others read."""
    entry = reader.table[17]
    change(entry.path, dataset, entry.token_offset + entry.num_tokens - 1)
    buffer = SampleBuffer(spec, 13)
    for read in (reader.read, lambda place: reader.read_into(place, buffer)):
        with pytest.raises(CheckError, match=rf"{entry.key} in {entry.path} .*checksum") as error:
            read(17)
        assert error.value.kind == "payload-corrupt"
    assert reader.read(17, check=False).key == entry.key
    assert reader.read_into(17, buffer, check=False).key == entry.key
    assert reader.read(16).key == reader.table[16].key
    assert reader.read(18).key == reader.table[18].key


def test_a_sample_in_parts(
    reader: RunReader, spec: CaptureSpec, is_expected: Callable[[Sample], bool]
) -> None:
    """Prompt and blocks of rows are together what ``read`` gives, whatever the blocks' size."""
    for num_rows in (1, 4, 13, 100):
        buffer = np.empty((num_rows, spec.row_width), storage_dtype(spec.dtype))
        for place, entry in enumerate(reader.table):
            token_ids, loss_mask = reader.read_prompt(place)
            blocks = [rows.copy() for rows in reader.read_blocks(entry.key, buffer)]
            assert all(len(rows) == num_rows for rows in blocks[:-1])
            assert is_expected(Sample(entry.key, token_ids, loss_mask, np.concatenate(blocks)))


@pytest.mark.parametrize("dataset", ["states", "input_ids", "loss_mask"])
def test_a_changed_part_is_refused(reader: RunReader, spec: CaptureSpec, dataset: str) -> None:
    """Each part by its own checksum; of states the last block is given out before it is known."""
    entry = reader.table[17]
    change(entry.path, dataset, entry.token_offset)
    buffer = np.empty((2, spec.row_width), storage_dtype(spec.dtype))
    blocks = reader.read_blocks(17, buffer)
    if dataset == "states":
        assert reader.read_prompt(17)[0].size == entry.num_tokens
        for _ in range(-(-entry.num_tokens // 2)):
            next(blocks)
        with pytest.raises(CheckError, match=f"{entry.key} .*states that fail their checksum"):
            next(blocks)
    else:
        assert sum(map(len, blocks)) == entry.num_tokens
        with pytest.raises(CheckError, match=f"{entry.key} .*checksum") as error:
            reader.read_prompt(17)
        assert error.value.kind == "payload-corrupt"


def test_read_arrays_are_the_callers_own(reader: RunReader) -> None:
    """Two reads share no memory and may be written to."""
    first, second = reader.read(5), reader.read(5)
    for array in (first.states, first.token_ids, first.loss_mask):
        array[...] = 0
    assert second.states.any()
    assert second.token_ids.any()
    assert second.loss_mask.any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_buffer_holds_every_dtype(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, dtype: str
) -> None:
    """Samples of any size up to the buffer's come back bit by bit, aligned, one after another."""
    spec = replace(spec, dtype=dtype, hidden_size=7)
    generator = np.random.default_rng(3)
    stored = {}
    with ShardWriter.create(tmp_path / "a.h5", spec, provenance, 100_000) as writer:
        for number, num_tokens in enumerate((1, 2, 31, 5, 30)):
            key = f"{number:032x}"
            states = generator.integers(0, 256, num_tokens * spec.row_bytes, np.uint8)
            token_ids = generator.integers(-(2**31), 2**31, num_tokens, np.int32)
            loss_mask = generator.integers(0, 2, num_tokens, np.uint8)
            writer.append(key, token_ids, loss_mask, states)
            stored[key] = states.tobytes(), token_ids.tobytes(), loss_mask.tobytes()
    buffer = SampleBuffer(spec, 31)
    with RunReader(SampleTable.scan(tmp_path)) as reader:
        for place in (2, 0, 4, 1, 3, 2):
            sample = reader.read_into(place, buffer)
            assert sample.states.dtype == storage_dtype(dtype)
            assert sample.states.shape == (len(sample.token_ids), 21)
            assert sample.states.ctypes.data % 64 == 0
            arrays = (sample.states, sample.token_ids, sample.loss_mask)
            assert tuple(array.tobytes() for array in arrays) == stored[sample.key]
            assert all(array.flags.aligned and array.flags.c_contiguous for array in arrays)


def test_read_into_takes_no_memory(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """All samples that are read into a buffer lie at one place, and nothing else is allocated."""
    num_tokens = 40_000
    with ShardWriter.create(tmp_path / "a.h5", spec, provenance, 1 << 24) as writer:
        for number in range(4):
            writer.append(*numbered_sample(number, num_tokens - number))
    buffer = SampleBuffer(spec, num_tokens)
    with RunReader(SampleTable.scan(tmp_path)) as reader:
        places = {reader.read_into(0, buffer).states.ctypes.data}
        tracemalloc.start()
        try:
            for place in (3, 1, 2, 0):
                places.add(reader.read_into(place, buffer).states.ctypes.data)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(places) == 1
    assert peak < 100_000, "a sample has 2 MB"


def test_unfit_buffer(reader: RunReader, spec: CaptureSpec) -> None:
    """Too small, of another capture spec, or empty: each buffer is refused."""
    with pytest.raises(ValueError, match=r"has 13 tokens and the buffer holds 12"):
        reader.read_into(12, SampleBuffer(spec, 12))
    assert reader.read_into(12, SampleBuffer(spec, 13)).key == reader.table[12].key
    with pytest.raises(ValueError, match="another capture spec"):
        reader.read_into(0, SampleBuffer(replace(spec, norm="pre"), 100))
    with pytest.raises(ValueError, match="0 tokens"):
        SampleBuffer(spec, 0)


def test_few_shards_are_open(folder: Path, is_expected: Callable[[Sample], bool]) -> None:
    """Never more than asked for, the ones read last stay, and none is left open."""
    reader = RunReader(SampleTable.scan(folder), max_open_shards=3)
    assert num_open_in(folder) == 0, "nothing is open before the first read"
    order = list(range(60))
    random.Random(5).shuffle(order)
    for place in order:
        assert is_expected(reader.read(place))
        assert num_open_in(folder) <= 3
    assert num_open_in(folder) == 3
    reader.close()
    assert num_open_in(folder) == 0
    assert is_expected(reader.read(0)), "a closed reader opens again"
    assert num_open_in(folder) == 1
    del reader
    assert num_open_in(folder) == 0, "nor does a forgotten one leave anything open"


#: Reads every sample of a folder twice, in random order, with few descriptors.
FEW_DESCRIPTORS = """
import random, resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from statetap_store import RunReader, SampleTable
numbered_sample = runpy.run_path(sys.argv[2])["numbered_sample"]
reader = RunReader(SampleTable.scan(sys.argv[1]))
places = 2 * list(range(len(reader.table)))
random.Random(1).shuffle(places)
for place in places:
    sample = reader.read(place)
    assert sample.states.tobytes() == numbered_sample(int(sample.key, 16))[3].tobytes()
print(len(reader.table.shards), len(places))
"""


def test_more_shards_than_descriptors(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """Hundreds of shards are read in random order under ``ulimit -n 256``."""
    for number in range(300):
        path = tmp_path / f"w0-{number:05d}.h5"
        with ShardWriter.create(path, spec, provenance, 10000) as writer:
            writer.append(*numbered_sample(number))
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(tmp_path), SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("300 600\n", "")


def test_many_threads(folder: Path, is_expected: Callable[[Sample], bool]) -> None:
    """Threads share a reader that can keep fewer shards open than there are threads."""
    with RunReader(SampleTable.scan(folder), max_open_shards=2) as reader:
        places = random.Random(7).choices(range(60), k=3000)
        with ThreadPoolExecutor(8) as threads:
            right = list(threads.map(lambda place: is_expected(reader.read(place)), places))
        assert all(right)
        assert num_open_in(folder) <= 2
    assert num_open_in(folder) == 0


#: Reads before and after a fork, in both processes, each closing and opening as it likes.
FORK = """
import os, random, runpy, sys
from statetap_store import RunReader, SampleTable
numbered_sample = runpy.run_path(sys.argv[2])["numbered_sample"]
reader = RunReader(SampleTable.scan(sys.argv[1]), max_open_shards=4)

def check(seed):
    for place in random.Random(seed).choices(range(60), k=500):
        sample = reader.read(place)
        assert sample.states.tobytes() == numbered_sample(int(sample.key, 16))[3].tobytes()

check(1)
child = os.fork()
check(2 if child else 3)
if child == 0:
    reader.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
check(4)
print(status)
"""


def test_across_a_fork(folder: Path) -> None:
    """Parent and child go on with the same open shards without disturbing one another."""
    command = [sys.executable, "-c", FORK, str(folder), SCRIPT]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("0\n", "")


def test_pickled_reader_has_nothing_open(
    folder: Path, is_expected: Callable[[Sample], bool]
) -> None:
    """It takes its list along, and how many shards it may open, but no descriptor."""
    reader = RunReader(SampleTable.scan(folder), max_open_shards=2)
    reader.read(0)
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 our own
    assert num_open_in(folder) == 1
    reader.close()
    assert list(copy.table) == list(reader.table)
    assert all(is_expected(copy.read(place)) for place in range(60))
    assert num_open_in(folder) == 2


def test_sealed_and_continued_meanwhile(
    shard: Path, numbered_sample: Sampler, is_expected: Callable[[Sample], bool]
) -> None:
    """Readers made before a shard was recovered, appended to and sealed read on, old and new."""
    table = SampleTable.scan(shard)
    started = RunReader(table)
    assert is_expected(started.read(3))
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
        assert all(is_expected(started.read(place)) for place in range(10))
    size = shard.stat().st_size
    seal(shard)
    assert shard.stat().st_size < size, "sealing cuts the file"
    for reader in (started, RunReader(table)):
        with reader:
            assert all(is_expected(reader.read(place)) for place in range(10))
    with RunReader(SampleTable.scan(shard)) as reader:
        assert len(reader.table) == 11
        assert is_expected(reader.read(10))


def test_shard_that_is_gone(folder: Path) -> None:
    """A shard that was removed since is named, and the others read on."""
    with RunReader(SampleTable.scan(folder)) as reader:
        path = reader.table[0].path
        path.unlink()
        with pytest.raises(MissingError, match=rf"{path} is gone") as error:
            reader.read(0)
        assert error.value.kind == "shard-missing"
        assert reader.read(59).key == reader.table[59].key


def test_no_descriptor_left(reader: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that may open no more files is told so."""

    def refuse(path: Path, flags: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path, flags)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(MissingError, match=r"cannot open .*Too many open files") as error:
        reader.read(0)
    assert error.value.kind == "shard-unreachable"


def test_shard_cut_short_since(shard: Path) -> None:
    """A shard that lost its end after it was listed is an error, and never a half-read sample."""
    with RunReader(SampleTable.scan(shard)) as reader:
        with h5py.File(shard) as hdf5:
            states = hdf5["states"].id.get_offset()
        entry = reader.table[4]
        os.truncate(shard, states + 48 * (entry.token_offset + entry.num_tokens) - 1)
        with pytest.raises(CheckError, match=f"{entry.key} .* does not hold"):
            reader.read(4)
        with pytest.raises(CheckError, match="does not hold"):
            reader.read(4, check=False)
        with pytest.raises(CheckError, match="does not hold"):
            list(reader.read_blocks(4, np.empty((3, 24), "<u2")))
        assert reader.read(3).key == reader.table[3].key


def test_bad_disk(reader: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails to read is told with the sample and the shard, checks or not."""

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    entry = reader.table[0]
    for check in (True, False):
        with pytest.raises(CheckError, match=rf"{entry.key} in {entry.path} cannot be read"):
            reader.read(0, check=check)
    with pytest.raises(CheckError, match=rf"{entry.key} in {entry.path} cannot be read"):
        list(reader.read_blocks(0, np.empty((3, 24), "<u2")))
    with pytest.raises(CheckError, match=rf"{entry.key} in {entry.path} cannot be read"):
        reader.read_prompt(0)


@pytest.mark.parametrize("num_tokens", [60, 2**32 - 1])
def test_row_outside_the_shard(shard: Path, num_tokens: int) -> None:
    """A row that claims tokens where none can be is an error before memory is taken for it."""
    seal(shard)
    with ShardFile.open(shard) as opened:
        layout = opened.header.layout
        row = IndexRow.decode(os.pread(opened.fd, 128, layout.row(5).offset), 5)
    assert row is not None
    with shard.open("r+b") as file:
        file.seek(layout.row(5).offset)
        file.write(replace(row, num_tokens=num_tokens).encode())
    with RunReader(SampleTable.scan(shard)) as reader, ShardReader(shard) as shard_reader:
        with pytest.raises(CheckError, match=f"{row.key} .* lies outside the shard"):
            reader.read(5)
        with pytest.raises(CheckError, match="lies outside the shard"):
            shard_reader.read(shard_reader.samples[5])
        assert reader.read(4).key == reader.table[4].key
