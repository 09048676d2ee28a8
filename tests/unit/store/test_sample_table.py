"""The list of the samples of many shards: complete, in order, each key once, proven."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash
from statetap_contract import CaptureSpec, CheckError, MissingError
from statetap_store import (
    Provenance,
    RunReader,
    SampleTable,
    ShardReader,
    ShardWriter,
    header_copies,
    seal,
    shard_file,
)
from statetap_store.shard_file import ShardFile

from .conftest import num_open_in

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Maker = Callable[..., Path]


@pytest.fixture
def make_shard(spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler) -> Maker:
    """``(path, numbers)`` to an unsealed shard, each sample committed alone."""

    def made(path: Path, numbers: Any, **changes: Any) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ShardWriter.create(path, replace(spec, **changes), provenance, 10000) as writer:
            for number in numbers:
                writer.append(*numbered_sample(number))
                writer.commit()
        return path

    return made


@pytest.fixture
def folder(tmp_path: Path, make_shard: Maker) -> Path:
    """Shards a (0 to 4), b (3 to 7) and c (7, 8, 0), so that 0, 3, 4 and 7 are there twice."""
    make_shard(tmp_path / "b.h5", range(3, 8))
    make_shard(tmp_path / "a.h5", range(5))
    make_shard(tmp_path / "c.h5", (7, 8, 0))
    return tmp_path


#: What ``folder`` holds, each key once.
LISTED = [("a.h5", n) for n in range(5)] + [("b.h5", n) for n in (5, 6, 7)] + [("c.h5", 8)]


def listed(table: SampleTable) -> list[tuple[str, int]]:
    return [(entry.path.name, int(entry.key, 16)) for entry in table]


def flip_states(path: Path, sequence: int) -> None:
    """Damages the states of one sample."""
    with h5py.File(path) as hdf5:
        row = hdf5["index"][sequence]
        position = hdf5["states"].id.get_offset() + 48 * int(row["token_offset"])
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def test_each_key_once_from_the_first_shard(folder: Path, spec: CaptureSpec) -> None:
    """Of samples with one key the first by shard name is listed, in a fixed order."""
    table = SampleTable.scan(folder)
    assert listed(table) == LISTED
    assert table.num_duplicates == 4
    assert table.num_tokens.tolist() == [1 + number % 13 for number in range(9)]
    assert table.spec == spec
    assert [path.name for path in table.shards] == ["a.h5", "b.h5", "c.h5"]


def test_first_row_of_a_repeated_key(tmp_path: Path, make_shard: Maker) -> None:
    """Of two rows of one shard with one key the first is listed, though no writer makes such."""
    path = make_shard(tmp_path / "a.h5", range(3))
    with ShardReader(path) as reader:
        first = reader.samples[0]
    with ShardFile.open(path) as shard:
        layout = shard.header.layout
        data = bytearray(os.pread(shard.fd, 128, layout.row(2).offset))
    data[8:40] = first.key.encode()
    # The row's checksum is over its first 120 bytes.
    data[120:] = xxhash.xxh3_64_intdigest(bytes(data[:120])).to_bytes(8, "little")
    with path.open("r+b") as file:
        file.seek(layout.row(2).offset)
        file.write(data)
    found = [(entry.sequence, int(entry.key, 16)) for entry in SampleTable.scan(path)]
    assert found == [(0, 0), (1, 1)]


def test_any_mixture_of_paths(folder: Path, tmp_path: Path) -> None:
    """Shards, folders and run folders, in any order, named twice, linked or not, are one list."""
    run = tmp_path / "runs" / "run-1"
    run.mkdir(parents=True)
    (run / "shards").symlink_to(folder)
    (tmp_path / "z.h5").hardlink_to(folder / "b.h5")
    for paths in (
        [folder],
        [str(folder)],
        [run],
        [folder / "c.h5", folder / "a.h5", folder / "b.h5"],
        [folder / "b.h5", run, folder / "b.h5", folder],
    ):
        table = SampleTable.scan(*paths)
        assert listed(table) == LISTED
        assert (len(table.shards), table.num_duplicates) == (3, 4)
    assert listed(SampleTable.scan(folder / "c.h5")) == [("c.h5", n) for n in (7, 8, 0)]


def test_relative_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list made from relative paths is right in another working folder."""
    monkeypatch.chdir(folder)
    table = SampleTable.scan(".", "a.h5")
    monkeypatch.chdir("/")
    assert listed(table) == LISTED
    assert {entry.path.parent for entry in table} == {folder}


def test_shards_of_one_name_in_two_runs(tmp_path: Path, make_shard: Maker) -> None:
    """Which of them is first does not depend on the order in which the runs are named."""
    for run, numbers in (("y", (1, 2)), ("x", (2, 3))):
        make_shard(tmp_path / run / "shards" / "w0-00001.h5", numbers)
    make_shard(tmp_path / "y" / "shards" / "v0-00001.h5", (3, 4))
    for runs in (("x", "y"), ("y", "x")):
        table = SampleTable.scan(*(tmp_path / run for run in runs))
        found = [(entry.path.parts[-3], entry.path.name[:2], int(entry.key, 16)) for entry in table]
        assert found == [("y", "v0", 3), ("y", "v0", 4), ("x", "w0", 2), ("y", "w0", 1)]


def test_no_shards(tmp_path: Path) -> None:
    """Where there is nothing to read, the error says what to name."""
    (tmp_path / "run" / "shards").mkdir(parents=True)
    (tmp_path / "run" / "shards" / ".w0-00001.h5.new").touch()
    (tmp_path / "run" / "shards" / "w0-00001.h5.lock").touch()
    for paths in ([], [tmp_path], [tmp_path / "run"], [tmp_path, tmp_path / "run" / "shards"]):
        with pytest.raises(MissingError, match=r"no shard in .*: name shard files") as error:
            SampleTable.scan(*paths)
        assert error.value.kind == "no-shards"
        assert all(str(path) in error.value.message for path in paths)


def test_path_that_is_not_there(folder: Path) -> None:
    """A name that leads nowhere is an error, though other paths hold shards."""
    with pytest.raises(MissingError, match=r"no shard .*none") as error:
        SampleTable.scan(folder, folder / "none")
    assert error.value.kind == "shard-missing"


def test_mixed_specs_are_refused(folder: Path, make_shard: Maker) -> None:
    """States of two capture specs are no dataset, even where one shard is empty."""
    make_shard(folder / "d.h5", (), norm="pre")
    with pytest.raises(CheckError, match=r"d\.h5 and .*a\.h5") as error:
        SampleTable.scan(folder)
    assert error.value.kind == "spec-mismatch"


def test_unreadable_shard_is_named(folder: Path) -> None:
    """A dataset with a shard missing from it is not handed out, and nothing stays open."""
    (folder / "d.h5").write_bytes(b"nothing")
    with pytest.raises(CheckError, match=r"d\.h5 is not an HDF5 file"):
        SampleTable.scan(folder)
    os.truncate(folder / "b.h5", (folder / "b.h5").stat().st_size - 1)
    with pytest.raises(CheckError, match=r"b\.h5 .* was cut short") as error:
        SampleTable.scan(folder)
    assert error.value.kind == "shard-truncated"
    assert num_open_in(folder) == 0


def test_half_written_sample_is_not_listed(folder: Path) -> None:
    """A sample that a crash may have cut short is left out, and a whole one of its key is not."""
    # Samples 4 of a and 7 of b are the last of their shards; c has a 7 that is durable.
    flip_states(folder / "a.h5", 4)
    flip_states(folder / "b.h5", 4)
    found = listed(SampleTable.scan(folder))
    expected = [("a.h5", n) for n in range(4)] + [("b.h5", n) for n in (4, 5, 6)]
    assert found == [*expected, ("c.h5", 7), ("c.h5", 8)]


def test_durable_sample_is_listed_unread(folder: Path) -> None:
    """A durable sample that was damaged is listed; whoever reads it is told."""
    flip_states(folder / "a.h5", 2)
    table = SampleTable.scan(folder)
    assert listed(table) == LISTED
    with pytest.raises(CheckError, match="checksum"):
        RunReader(table).read(2)


def test_unfinished_batch(tmp_path: Path, make_shard: Maker, numbered_sample: Sampler) -> None:
    """What a live writer has written and not yet committed is listed once it is whole."""
    path = make_shard(tmp_path / "a.h5", range(3))
    with ShardWriter.open(path) as writer:
        for number in range(3, 6):
            writer.append(*numbered_sample(number))
        assert len(SampleTable.scan(path)) == 6
        flip_states(path, 4)
        assert [number for _, number in listed(SampleTable.scan(path))] == [0, 1, 2, 3, 5]


def test_bad_disk_under_the_last_sample(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that does not give what is to be proven is an error that names the shard."""
    real = os.preadv
    with h5py.File(shard) as hdf5:
        states = hdf5["states"].id.get_offset()

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset >= states:
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(CheckError, match=r"cannot read .*w0-00001\.h5 \(Input/output") as error:
        SampleTable.scan(shard)
    assert error.value.kind == "shard-unreadable"


@pytest.mark.parametrize("reads", [SampleTable.scan, lambda path: ShardReader(path).samples])
def test_sealed_between_two_looks(
    shard: Path, monkeypatch: pytest.MonkeyPatch, reads: Callable[[Path], SampleTable]
) -> None:
    """A shard that is sealed, and cut, just after its header was read is not taken for damaged."""
    real = header_copies.read_copies
    is_sealed = False

    def read_copies(fd: int) -> header_copies.HeaderCopies:
        nonlocal is_sealed
        copies = real(fd)
        if not is_sealed:
            is_sealed = True
            seal(shard)
        return copies

    monkeypatch.setattr(shard_file, "read_copies", read_copies)
    assert len(reads(shard)) == 10
    assert ShardReader(shard).is_sealed


def test_sequence(shard: Path) -> None:
    """Entries say what the index says, by place from either end, in slices and one by one."""
    table = SampleTable.scan(shard)
    with h5py.File(shard) as hdf5:
        rows = hdf5["index"][:10]
    assert len(table) == 10
    for number, row in enumerate(rows):
        entry = table[number]
        assert (entry.key, entry.path) == (row["key"].decode(), shard)
        for name in ("token_offset", "num_tokens", "sequence", "time_ns"):
            assert getattr(entry, name) == row[name]
        for name in ("states_xxh3", "ids_xxh3", "mask_xxh3"):
            assert getattr(entry, name) == row[name]
    assert table[-1] == table[9]
    assert table[np.int64(3)] == table[3]
    assert table[7:] == [table[7], table[8], table[9]]
    assert list(table) == table[:]
    assert table[4] in table
    for index in (10, -11):
        with pytest.raises(IndexError):
            table[index]


def test_find(folder: Path) -> None:
    """Each key leads to its place; what is no key of the list leads nowhere."""
    table = SampleTable.scan(folder)
    for place, entry in enumerate(table):
        assert table.find(entry.key) == place
    for key in ("", "0", "f" * 32, f"{9:032x}", f"{3:032x}0", f"{3:032x}\0", "ö" * 32, "G" * 32):
        assert table.find(key) is None


def test_repeated_keys_lead_to_the_first(folder: Path) -> None:
    """Also in the list of a single shard, which may hold a key twice."""
    with ShardReader(folder / "a.h5") as reader:
        samples = reader.samples
    often = replace(samples, records=np.tile(samples.records, 200))
    assert [often.find(entry.key) for entry in samples] == list(range(5))


def test_empty_shard(tmp_path: Path, make_shard: Maker) -> None:
    """A shard without samples is an empty list, not an error."""
    table = SampleTable.scan(make_shard(tmp_path / "a.h5", ()))
    assert (len(table), list(table), table.find("0" * 32)) == (0, [], None)
    assert table.num_tokens.tolist() == []


#: Prints the keys and places of a pickled table.
UNPICKLE = """
import pickle, sys
for entry in pickle.load(sys.stdin.buffer):
    print(entry.path, entry.sequence, entry.key)
"""


def test_the_same_list_in_another_process(folder: Path, numbered_sample: Sampler) -> None:
    """A pickled list is not read anew: what was appended since is not in it."""
    table = SampleTable.scan(folder)
    with ShardWriter.open(folder / "a.h5") as writer:
        writer.append(*numbered_sample(100))
    result = subprocess.run(
        [sys.executable, "-c", UNPICKLE],
        input=pickle.dumps(table),
        capture_output=True,
        check=True,
    )
    expected = [f"{entry.path} {entry.sequence} {entry.key}" for entry in table]
    assert result.stdout.decode().splitlines() == expected
    assert len(SampleTable.scan(folder)) == len(table) + 1


def test_hundred_bytes_a_sample(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """That is what a list takes, in memory and pickled, also once keys were looked up."""
    num_samples = 5000
    path = tmp_path / "a.h5"
    _, token_ids, loss_mask, states = numbered_sample(0)
    with ShardWriter.create(path, spec, provenance, num_samples * 16 * 53) as writer:
        for number in range(num_samples):
            writer.append(f"{number:032x}", token_ids, loss_mask, states)
    table = SampleTable.scan(path)
    assert table.find(f"{1234:032x}") == 1234
    kept = [value for value in vars(table).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in kept) <= 100 * num_samples
    assert len(pickle.dumps(table)) <= 100 * num_samples + 2000


def test_under_a_live_writer(tmp_path: Path, numbered_sample: Sampler) -> None:
    """While a process appends, rolls over and seals, each list is right and lasts."""
    folder, acknowledged = tmp_path / "shards", tmp_path / "acknowledged"
    script = str(Path(__file__).with_name("endless_writer.py"))
    acknowledged.touch()
    places: dict[str, tuple[Path, int]] = {}
    arguments = [sys.executable, script, str(folder), "0", "3", str(acknowledged)]
    with subprocess.Popen(arguments) as writer:
        try:
            for _ in range(100_000):
                num_acknowledged = len(acknowledged.read_text().splitlines())
                if num_acknowledged == 0:
                    assert writer.poll() is None, "the writer does not write"
                    continue
                table = SampleTable.scan(folder)
                assert len(table) >= num_acknowledged
                found = {entry.key: (entry.path, entry.sequence) for entry in table}
                assert places.items() <= found.items(), "a listed sample went or moved"
                places = found
                with RunReader(table) as reader:
                    # The last ones always, and of the others a few.
                    for index in {*range(len(table) - 9, len(table)), *range(0, len(table), 97)}:
                        sample = reader.read(max(0, index))
                        expected = numbered_sample(int(sample.key, 16))
                        assert sample.states.tobytes() == expected[3].tobytes()
                        assert np.array_equal(sample.token_ids, expected[1])
                        assert np.array_equal(sample.loss_mask, expected[2])
                if len(table.shards) >= 6:
                    break
            else:
                pytest.fail("the writer did not fill six shards")
        finally:
            writer.send_signal(signal.SIGKILL)
    assert len(SampleTable.scan(folder)) >= len(places)
