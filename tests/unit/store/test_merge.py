"""Many shards become one sealed file with every sample once, or nothing at all."""

import dataclasses
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec, CheckError, MissingError, StopError, UsageError
from statetap_store import (
    MergeReport,
    Provenance,
    ShardReader,
    ShardWriter,
    merge_shards,
    repair_shard,
    seal,
    verify_shard,
)

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Maker = Callable[..., Path]

MIB = 1024 * 1024


@pytest.fixture
def make(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> Maker:
    """``(name, numbers, worker="w0", spec=None)`` to an unsealed shard with these samples."""

    def make_shard(name: str, numbers: range, **changes: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        other = changes.pop("spec", spec)
        origin = dataclasses.replace(provenance, **changes)
        with ShardWriter.create(path, other, origin, 64 * 1024) as writer:
            for number in numbers:
                writer.append(*numbered_sample(number))
                writer.commit()
        return path

    return make_shard


def merge(out: Path, *paths: Path) -> MergeReport:
    return merge_shards(paths, out, on_progress=lambda *_: None)


def expected(sampler: Sampler, *numbers: int) -> list[tuple[str, bytes]]:
    """Key and the bytes of ids, mask and states of these samples."""
    return [
        (key, b"".join(part.tobytes() for part in parts)) for key, *parts in map(sampler, numbers)
    ]


def stored(path: Path) -> list[tuple[str, bytes]]:
    """The same of all samples of a shard, each checked, in order."""
    with ShardReader(path) as reader:
        samples = [reader.read(entry) for entry in reader.samples]
    return [
        (s.key, b"".join(part.tobytes() for part in (s.token_ids, s.loss_mask, s.states)))
        for s in samples
    ]


def flip(path: Path, dataset: str, element: int) -> None:
    """Changes one bit of an element of a dataset."""
    with h5py.File(path) as hdf5:
        place = hdf5[dataset].id.get_offset() + element * hdf5[dataset][0].nbytes
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def token_of(path: Path, sequence: int) -> int:
    with h5py.File(path) as hdf5:
        return int(hdf5["index"][sequence]["token_offset"])


def test_every_sample_once(make: Maker, tmp_path: Path, numbered_sample: Sampler) -> None:
    """By shard name, then by row; of a key that is there twice the first one, as readers do."""
    second = make("run/shards/b.h5", range(5, 20))
    first = make("a.h5", range(10))
    seal(first)
    out = tmp_path / "all.h5"
    times: dict[bytes, int] = {}
    for path in (second, first):
        with h5py.File(path) as hdf5:
            times |= {row["key"]: row["time_ns"] for row in hdf5["index"] if row["state"] == 1}
    report = merge(out, tmp_path / "run", first, second)

    num_tokens = sum(1 + number % 13 for number in range(20))
    assert report == MergeReport(out, 2, 20, num_tokens, num_tokens * (48 + 4 + 1), 5)
    assert stored(out) == expected(numbered_sample, *range(20))
    assert verify_shard(out).faults == ()
    with h5py.File(out) as hdf5:
        rows = hdf5["index"][...]
        assert hdf5["states"].shape == (num_tokens, 24)
        assert out.stat().st_size == hdf5["states"].id.get_offset() + hdf5["states"].nbytes
        assert hdf5.attrs["sealed"]
        assert (rows["sequence"] == np.arange(20)).all()
        assert (rows["num_durable"] == np.arange(20)).all()
        assert {row["key"]: row["time_ns"] for row in rows} == times
    assert sorted(path.name for path in tmp_path.iterdir() if "all" in path.name) == ["all.h5"]


def test_void_rows_are_left_behind(make: Maker, tmp_path: Path, numbered_sample: Sampler) -> None:
    """What repair gave up is not in the merged file, and leaves no gap in it."""
    path = make("a.h5", range(10))
    flip(path, "states", token_of(path, 4))
    repair_shard(path)
    merge(tmp_path / "all.h5", path)
    numbers = [number for number in range(10) if number != 4]
    assert stored(tmp_path / "all.h5") == expected(numbered_sample, *numbers)
    assert verify_shard(tmp_path / "all.h5").faults == ()


def test_provenance_of_all(make: Maker, tmp_path: Path) -> None:
    """One value where all agree, else each value once; merging again repeats none."""
    paths = [
        make("a.h5", range(3), worker="w0", host="gpu-2"),
        make("b.h5", range(3, 6), worker="w1", template_digest="t" * 32),
        make("c.h5", range(6, 9), worker="w0"),
    ]
    merge(tmp_path / "ab.h5", *paths[:2])
    merge(tmp_path / "abc.h5", tmp_path / "ab.h5", paths[2])
    for name in ("ab.h5", "abc.h5"):
        with h5py.File(tmp_path / name) as hdf5:
            assert hdf5.attrs["run"] == "run-1"
            assert hdf5.attrs["worker"] == "w0, w1"
            assert hdf5.attrs["host"] == "gpu-2, gpu-1"
            assert hdf5.attrs["tokenizer_digest"] == ""
            assert hdf5.attrs["template_digest"] == "t" * 32
            assert list(hdf5.attrs["raw_layer_ids"]) == [2, 4]


def test_what_does_not_belong_together(make: Maker, spec: CaptureSpec, tmp_path: Path) -> None:
    """Other capture specs and other layers of the server are refused, and no file is made."""
    path = make("a.h5", range(3))
    other = make("b.h5", range(0), spec=dataclasses.replace(spec, layers=(1, 2)))
    with pytest.raises(CheckError, match="different capture specs") as mismatch:
        merge(tmp_path / "all.h5", path, other)
    assert mismatch.value.kind == "spec-mismatch"
    other = make("c.h5", range(3), raw_layer_ids=(1, 3))
    with pytest.raises(UsageError, match=r"\[2, 4\] and \[1, 3\]") as refused:
        merge(tmp_path / "all.h5", path, other)
    assert refused.value.kind == "spec-mismatch"
    assert not list(tmp_path.glob("*all*"))


def test_outputs_that_cannot_be(make: Maker, tmp_path: Path) -> None:
    """A file that is there is never touched; a folder that is not there, no shard, no sample."""
    path, empty = make("a.h5", range(3)), make("empty.h5", range(0))
    whole = path.read_bytes()
    with pytest.raises(UsageError, match="exists already") as exists:
        merge(path, path)
    assert exists.value.kind == "shard-exists"
    assert path.read_bytes() == whole
    with pytest.raises(MissingError) as missing:
        merge(tmp_path / "no" / "all.h5", path)
    assert missing.value.kind == "folder-missing"
    with pytest.raises(MissingError) as missing:
        merge(tmp_path / "all.h5", tmp_path / "none.h5")
    assert missing.value.kind == "shard-missing"
    with pytest.raises(CheckError) as nothing:
        merge(tmp_path / "all.h5", empty)
    assert nothing.value.kind == "no-samples"
    assert not list(tmp_path.glob("*all*"))


@pytest.mark.parametrize("dataset", ["states", "input_ids", "loss_mask"])
def test_a_damaged_payload_ends_it(make: Maker, tmp_path: Path, dataset: str) -> None:
    """Sample, shard and command are named, and nothing half-made is left."""
    path = make("a.h5", range(10))
    flip(path, dataset, token_of(path, 4))
    with pytest.raises(CheckError, match="statetap repair") as damaged:
        merge(tmp_path / "all.h5", path)
    assert damaged.value.kind == "payload-corrupt"
    assert f"{4:032x}" in damaged.value.message
    assert str(path) in damaged.value.message
    assert not list(tmp_path.glob("*all*"))
    repair_shard(path)
    assert merge(tmp_path / "all.h5", path).num_samples == 9


@pytest.mark.parametrize(("dataset", "element"), [("index", 3), ("index", 9), ("states", 54)])
def test_samples_that_readers_pass_over_end_it(
    make: Maker, tmp_path: Path, dataset: str, element: int
) -> None:
    """A damaged row, and a last sample that is not whole, are not left out in silence."""
    path = make("a.h5", range(10))
    flip(path, dataset, element)
    with pytest.raises(CheckError, match="statetap repair") as damaged:
        merge(tmp_path / "all.h5", path)
    assert damaged.value.kind == ("row-corrupt" if dataset == "index" else "payload-corrupt")
    assert str(path) in damaged.value.message
    assert not list(tmp_path.glob("*all*"))


def test_a_shard_that_is_being_written(
    make: Maker, tmp_path: Path, numbered_sample: Sampler
) -> None:
    """What has been appended is merged, and the writer goes on."""
    path = make("a.h5", range(3))
    with ShardWriter.open(path) as writer:
        writer.append(*numbered_sample(3))
        assert merge(tmp_path / "all.h5", path).num_samples == 4
        writer.append(*numbered_sample(4))
    assert stored(path) == expected(numbered_sample, *range(5))


def test_no_room(make: Maker, small_disk: Path) -> None:
    """A disk without room is found out before anything is copied; the sentence names the bytes."""
    path = make("a.h5", range(10))
    with pytest.raises(StopError) as full:
        merge(small_disk / "all.h5", path)
    num_tokens = sum(1 + number % 13 for number in range(10))
    assert full.value.kind == "disk-full"
    assert f"{5 * MIB + 48 * num_tokens:,} bytes" in full.value.message
    assert list(small_disk.iterdir()) == []


def test_no_permission(make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in which no file can be made is named."""
    path = make("a.h5", range(3))
    real = os.open

    def refuse(name: Any, flags: int, *mode: Any, **others: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(name, flags, *mode, **others)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StopError, match="not allowed") as refused:
        merge(tmp_path / "all.h5", path)
    assert refused.value.kind == "not-writable"


def test_interrupted_and_merged_again(
    make: Maker, tmp_path: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception at any moment leaves nothing; what a killed process left is replaced."""
    path, out = make("a.h5", range(10)), tmp_path / "all.h5"

    def interrupt(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_shards([path], out, on_progress=interrupt)
    assert not list(tmp_path.glob("*all*"))
    with monkeypatch.context() as killed:
        killed.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            merge_shards([path], out, on_progress=interrupt)
    assert not out.exists()
    assert len(list(tmp_path.glob(".*all*"))) == 1
    merge(out, path)
    assert stored(out) == expected(numbered_sample, *range(10))
    assert [name.name for name in tmp_path.glob("*all*")] == ["all.h5"]


def test_a_sample_larger_than_a_piece(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """Large samples are copied piece by piece, and the last byte is checked too."""
    path = tmp_path / "a.h5"
    with ShardWriter.create(path, spec, provenance, 8 * MIB) as writer:
        writer.append(*numbered_sample(1, 50_000))
        writer.append(*numbered_sample(2, 7))
    merge(tmp_path / "all.h5", path)
    assert stored(tmp_path / "all.h5") == stored(path)
    flip(path, "states", 49_999)
    with pytest.raises(CheckError):
        merge(tmp_path / "again.h5", path)


def test_progress_ends_with_everything(make: Maker, tmp_path: Path) -> None:
    """Progress grows from sample to sample to all bytes."""
    path = make("a.h5", range(10))
    seen: list[tuple[int, int]] = []
    report = merge_shards(
        [path], tmp_path / "all.h5", on_progress=lambda *numbers: seen.append(numbers)
    )
    assert len(seen) == 10
    assert seen == sorted(set(seen))
    assert seen[-1] == (report.num_bytes, report.num_bytes)
