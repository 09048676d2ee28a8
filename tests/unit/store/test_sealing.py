"""Sealing, and what a crash in the midst of it leaves."""

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec, StopError
from statetap_store import Provenance, ShardReader, ShardWriter, seal, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]
CrashAt = Callable[[int], AbstractContextManager[list[str]]]

MIB = 1024 * 1024


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    with h5py.File(path) as hdf5:
        return {name: hdf5[name].shape for name in hdf5}


def test_sealed_shard_has_no_slack(shard: Path, numbered_sample: Sampler) -> None:
    """Every dataset has the exact number of samples or tokens, and the file ends with them."""
    seal(shard)
    num_tokens = sum(1 + number % 13 for number in range(10))
    assert shapes(shard) == {
        "header_backup": (MIB,),
        "index": (10,),
        "input_ids": (num_tokens,),
        "loss_mask": (num_tokens,),
        "states": (num_tokens, 24),
    }
    with h5py.File(shard) as hdf5:
        assert shard.stat().st_size == hdf5["states"].id.get_offset() + hdf5["states"].nbytes
        states = np.concatenate([numbered_sample(number)[3] for number in range(10)])
        assert np.array_equal(hdf5["states"][...], states)
        assert hdf5.attrs["sealed"]
    assert verify_shard(shard).faults == ()


def test_sealing_twice_changes_nothing(shard: Path) -> None:
    """A sealed shard stays as it is."""
    seal(shard)
    before = shard.read_bytes()
    seal(shard)
    assert shard.read_bytes() == before


def test_shard_in_use_is_not_sealed(shard: Path) -> None:
    """A shard that a worker has open is refused and unchanged."""
    with ShardWriter.open(shard):
        before = shard.read_bytes()
        with pytest.raises(StopError, match="open for writing") as refusal:
            seal(shard)
        assert refusal.value.kind == "shard-locked"
        assert shard.read_bytes() == before


def test_empty_shard_can_be_sealed(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance
) -> None:
    """A shard without samples becomes a valid file with empty datasets."""
    path = tmp_path / "s.h5"
    ShardWriter.create(path, spec, provenance, 4096).close()
    seal(path)
    assert shapes(path)["states"] == (0, 24)
    assert path.stat().st_size == 2 * MIB
    assert verify_shard(path).faults == ()
    with ShardReader(path) as reader:
        assert len(reader.samples) == 0
        assert reader.is_sealed


def test_dropped_tail_is_cut(shard: Path, numbered_sample: Sampler) -> None:
    """What recovery gave up is not in the sealed shard's states, and its rows are void."""
    with h5py.File(shard) as hdf5:
        position = hdf5["loss_mask"].id.get_offset() + int(hdf5["index"][9]["token_offset"])
    with shard.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")
    seal(shard)
    assert shapes(shard)["index"] == (10,)
    assert shapes(shard)["states"] == (sum(1 + number % 13 for number in range(9)), 24)
    assert verify_shard(shard).faults == ()
    assert len(numbered_sample(9)[1]) == 10


def test_crash_at_every_step_of_sealing(shard: Path, crash_at: CrashAt, tmp_path: Path) -> None:
    """Wherever a crash stops it, the samples stay readable and sealing again finishes it."""
    whole = shard.read_bytes()
    seal(shard)
    sealed = shapes(shard), shard.stat().st_size
    for call_number in range(100):
        path = tmp_path / f"{call_number}.h5"
        path.write_bytes(whole)
        with crash_at(call_number) as made:
            try:
                seal(path)
            except KeyboardInterrupt:
                pass
            else:
                break
        with ShardReader(path) as reader:
            assert len([reader.read(entry) for entry in reader.samples]) == 10
        seal(path)
        assert (shapes(path), path.stat().st_size) == sealed
        assert verify_shard(path).faults == ()
    assert made[-8:] == ["pwrite", "fsync"] * 3 + ["ftruncate", "fsync"]


@pytest.mark.parametrize("cut", [1, 512, 4096, 8192])
def test_torn_header_after_the_copy(shard: Path, crash_at: CrashAt, cut: int) -> None:
    """A header of which only the first bytes were replaced is completed, even by opening it."""
    with crash_at(1000) as made:
        ShardWriter.open(shard).close()
    with crash_at(len(made) + 2), pytest.raises(KeyboardInterrupt):
        seal(shard)
    report = verify_shard(shard)
    assert [fault.kind for fault in report.faults] == ["seal-unfinished"]
    assert report.num_samples == 10
    copy = shard.read_bytes()[MIB + MIB // 2 + 16 :][:cut]
    with shard.open("r+b") as file:
        file.write(copy)
    with pytest.raises(StopError) as refusal:
        ShardWriter.open(shard)
    assert refusal.value.kind == "shard-sealed"
    assert verify_shard(shard).faults == ()
    with h5py.File(shard) as hdf5:
        assert hdf5["index"].shape == (10,)


@pytest.mark.parametrize("slot", [0, 1])
def test_either_copy_of_a_sealed_header_may_be_damaged(shard: Path, slot: int) -> None:
    """A sealed shard stays sealed and readable on one copy, and sealing again mends the other."""
    seal(shard)
    whole = shard.read_bytes()
    with shard.open("r+b") as file:
        file.write(bytes(512))
        file.seek(MIB + slot * MIB // 2 + 100)
        file.write(b"\xff\xfe")
    with ShardReader(shard) as reader:
        assert reader.is_sealed
        assert len([reader.read(entry) for entry in reader.samples]) == 10
    seal(shard)
    assert shard.read_bytes() == whole


def test_torn_copy_does_not_count(shard: Path, numbered_sample: Sampler) -> None:
    """A copy of the sealed header that is torn leaves the shard unsealed, and is cleared."""
    with shard.open("r+b") as file:
        file.seek(MIB + MIB // 2)
        file.write(b"\x00\x20\x00\x00\x00\x00\x00\x00torn")
    assert [fault.kind for fault in verify_shard(shard).faults] == ["backup-damaged"]
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
    assert verify_shard(shard).faults == ()
    assert verify_shard(shard).num_samples == 11


def test_full_disk_while_sealing(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the new header the shard stays readable and can be sealed later."""
    writer = ShardWriter.open(shard)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "pwrite", fail)
        with pytest.raises(StopError, match="No space left") as refusal:
            writer.seal()
    assert refusal.value.kind == "disk-full"
    writer.close()
    assert verify_shard(shard).num_samples == 10
    seal(shard)
    assert verify_shard(shard).faults == ()
