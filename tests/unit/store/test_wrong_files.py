"""Paths that lead to no whole shard of this format: one sentence each, from every entry."""

import os
import random
import re
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from statetap_contract import CheckError, MissingError, StatetapError, StopError
from statetap_producer.cli import app
from statetap_store import ShardReader, ShardWriter, seal, verify_shard
from typer.testing import CliRunner, Result

from .conftest import num_open_in

Statetap = Callable[..., Result]

MIB = 1024 * 1024
ROW = 128
SEED = 2024


def text(path: Path) -> None:
    path.write_text("# Notes\n")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_hdf5(path: Path) -> None:
    path.unlink()
    with h5py.File(path, "w") as hdf5:
        hdf5["states"] = np.zeros((3, 4))


def other_new_hdf5(path: Path) -> None:
    path.unlink()
    with h5py.File(path, "w", libver="latest") as hdf5:
        hdf5["states"] = np.zeros((3, 4))


def newer_version(path: Path) -> None:
    """A whole shard that says version 2, as its copies do."""
    with ShardReader(path) as reader:
        spec, provenance = reader.spec, reader.provenance
    path.unlink()
    with pytest.MonkeyPatch.context() as later:
        later.setattr("statetap_store.header.FORMAT_VERSION", 2)
        ShardWriter.create(path, spec, provenance, 4096).close()


def newer_version_without_copies(path: Path) -> None:
    """A later format may have its copies elsewhere; its version must be seen all the same."""
    with path.open("r+b") as file:
        file.seek(MIB)
        file.write(bytes(MIB))
    with h5py.File(path, "r+") as hdf5:
        hdf5.attrs["format_version"] = 2


def header_and_copies_lost(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8)
        file.write(b"\xff" * 4000)
        file.seek(MIB)
        file.write(bytes(MIB))


def missing(path: Path) -> None:
    path.unlink()


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("nowhere.h5"))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def listening_socket(path: Path) -> None:
    path.unlink()
    # Its whole path would be too long for an address.
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


#: What is wrong with a file, and how all that read it say so.
NO_SHARDS = [
    (text, "shard-not-hdf5", "is not an HDF5 file"),
    (empty, "shard-not-hdf5", "is not an HDF5 file"),
    (other_hdf5, "shard-foreign", "is an HDF5 file but not a statetap shard"),
    (other_new_hdf5, "shard-foreign", "is an HDF5 file but not a statetap shard"),
    (newer_version, "shard-newer", "has format version 2 .* install a newer statetap"),
    (newer_version_without_copies, "shard-newer", "has format version 2 .* install a newer"),
    (header_and_copies_lost, "shard-unreadable", "restore the file or extract its samples again"),
]

#: What may be where a file should be, and how opening it for reading says so.
NO_FILES = [
    (missing, "shard-missing", "there is no shard .*: check the path"),
    (dangling_link, "shard-missing", "there is no shard .*: check the path"),
    (folder, "shard-missing", "is a folder, not a shard"),
    (pipe, "shard-missing", "is a device or a pipe, not a shard"),
    (endless_link, "shard-unreachable", r"Too many levels of symbolic links.*check the path"),
    (listening_socket, "shard-unreachable", r"No such device or address.*check the path"),
]


@pytest.fixture
def statetap(monkeypatch: pytest.MonkeyPatch) -> Statetap:
    """Runs the command in this process; anything but an exit is raised as it is."""
    monkeypatch.setenv("COLUMNS", "1000")

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)

    return invoke


def refusal(
    expected: type[StatetapError], call: Callable[[Path], object], path: Path
) -> StatetapError:
    """The error of a call: one sentence that names the path, and no descriptor left open."""
    before = num_open_in(path.parent)
    with pytest.raises(expected) as error:
        call(path)
    assert num_open_in(path.parent) == before
    assert str(path) in error.value.message
    assert "\n" not in error.value.message
    return error.value


def check_command(result: Result, exit_code: int, sentence: str) -> None:
    """The command fails with a code of its own and one sentence on stderr."""
    assert result.exit_code == exit_code
    assert re.fullmatch(f"statetap: .*{sentence}.*\n", result.stderr)
    assert result.stdout == ""


@pytest.mark.parametrize(("spoil", "kind", "sentence"), NO_SHARDS)
def test_file_that_is_no_shard(
    shard: Path,
    statetap: Statetap,
    spoil: Callable[[Path], None],
    kind: str,
    sentence: str,
) -> None:
    """All that reads it says what it is, verification calls it faulty, and it is left alone."""
    spoil(shard)
    shard.with_name(shard.name + ".lock").unlink()
    before = shard.read_bytes()
    for expected, call in (
        (CheckError, ShardReader),
        (StopError, ShardWriter.open),
        (StopError, seal),
    ):
        error = refusal(expected, call, shard)
        assert error.kind == kind
        assert re.search(sentence, error.message)
    report = verify_shard(shard)
    assert [(fault.kind, fault.key) for fault in report.faults] == [(kind, None)]
    assert report.faults[0].message == error.message
    assert (report.num_samples, report.num_tokens, report.num_bytes) == (0, 0, 0)

    verdict = statetap("verify", shard)
    assert (verdict.exit_code, verdict.stderr) == (1, "")
    assert f"\n{kind}: {error.message}\n" in verdict.stdout
    check_command(statetap("seal", shard), 3, sentence)
    assert shard.read_bytes() == before
    assert list(shard.parent.iterdir()) == [shard]


@pytest.mark.timeout(20)
@pytest.mark.parametrize(("spoil", "kind", "sentence"), NO_FILES)
def test_path_that_is_no_file(
    shard: Path,
    statetap: Statetap,
    spoil: Callable[[Path], None],
    kind: str,
    sentence: str,
) -> None:
    """What cannot be a shard is not waited for, read or locked."""
    shard.with_name(shard.name + ".lock").unlink()
    spoil(shard)
    for call in (ShardReader, ShardWriter.open, verify_shard, seal):
        error = refusal(MissingError, call, shard)
        assert error.kind == kind
        assert re.search(sentence, error.message)
    if spoil is folder:
        # To a command it is a run's folder.
        check_command(statetap("verify", shard), 3, "holds no run.json")
        check_command(statetap("seal", shard), 3, "holds no run.json")
    else:
        check_command(statetap("verify", shard), 3, sentence)
        check_command(statetap("seal", shard), 3, sentence)
    assert {path.name for path in shard.parent.iterdir()} <= {shard.name}


def test_path_through_a_file(tmp_path: Path) -> None:
    """A path that goes on behind a file leads to no shard."""
    (tmp_path / "file").touch()
    for call in (ShardReader, ShardWriter.open, verify_shard, seal):
        assert refusal(MissingError, call, tmp_path / "file" / "s.h5").kind == "shard-missing"


def sample_ends(path: Path) -> dict[str, list[int]]:
    """Where each sample ends in the file: its index row, ids, mask and states, by plain h5py."""
    with h5py.File(path) as hdf5:
        start = {name: hdf5[name].id.get_offset() for name in hdf5}
        return {
            row["key"].decode(): [
                start["index"] + ROW * (number + 1),
                *(
                    start[name] + token_bytes * int(row["token_offset"] + row["num_tokens"])
                    for name, token_bytes in (("input_ids", 4), ("loss_mask", 1), ("states", 48))
                ),
            ]
            for number, row in enumerate(hdf5["index"][:10])
        }


def cuts(path: Path) -> list[int]:
    """Twenty lengths: in the header, the copies, the index, the small parts and the states."""
    with h5py.File(path) as hdf5:
        start = {name: hdf5[name].id.get_offset() for name in hdf5}
        num_tokens = sum(int(row["num_tokens"]) for row in hdf5["index"][:10])
    places = [
        (36, MIB),
        (MIB, MIB),
        (start["index"], 10 * ROW),
        (start["input_ids"], 4 * num_tokens),
        (start["states"], 48 * num_tokens),
    ]
    generator = random.Random(SEED)
    return [first + generator.randrange(num_bytes) for first, num_bytes in places for _ in range(4)]


@pytest.mark.parametrize("is_sealed", [False, True])
def test_shard_that_was_cut_short(
    shard: Path, tmp_path: Path, statetap: Statetap, *, is_sealed: bool
) -> None:
    """Wherever it ends: truncated, with both lengths; only samples behind the cut are missed."""
    if is_sealed:
        seal(shard)
    whole = shard.stat().st_size
    ends = sample_ends(shard)
    for length in cuts(shard):
        path = tmp_path / f"{length}.h5"
        shutil.copyfile(shard, path)
        os.truncate(path, length)
        sentence = (
            f"has {length} bytes of {whole}: it was cut short; copy it again, or run "
            f"'statetap repair {path}'"
        )
        for expected, call in (
            (CheckError, ShardReader),
            (StopError, ShardWriter.open),
            (StopError, seal),
        ):
            error = refusal(expected, call, path)
            assert (error.kind, error.message) == ("shard-truncated", f"{path} {sentence}")
        faults = verify_shard(path).faults
        assert [fault.kind for fault in faults].count("shard-truncated") == 1
        blamed = {fault.key for fault in faults if fault.key is not None}
        intact = {key for key, places in ends.items() if max(places) <= length}
        without_payload = {key for key, places in ends.items() if places[0] <= length < max(places)}
        assert without_payload <= blamed, f"seed {SEED}, {length} bytes"
        assert not blamed & intact, f"seed {SEED}, {length} bytes"

        verdict = statetap("verify", path)
        assert (verdict.exit_code, verdict.stderr) == (1, "")
        assert f"\nshard-truncated: {path} {sentence}\n" in verdict.stdout
        check_command(statetap("seal", path), 3, sentence)
        assert path.stat().st_size == length


@pytest.mark.parametrize(
    ("length", "kind"), [(7, "shard-not-hdf5"), (8, "shard-unreadable"), (35, "shard-unreadable")]
)
def test_hardly_anything_left(shard: Path, length: int, kind: str) -> None:
    """A file too short to say how long it should be is still refused with a sentence."""
    os.truncate(shard, length)
    assert refusal(CheckError, ShardReader, shard).kind == kind
    assert [fault.kind for fault in verify_shard(shard).faults] == [kind]
