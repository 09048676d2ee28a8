"""The shards of a worker process: rolling over, continuing, knowing what others stored."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec, MissingError, StopError
from statetap_store import Provenance, SampleTable, ShardSet, verify_shard
from statetap_store.index_row import ROW_BYTES, STATE_VOID, IndexRow

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Opener = Callable[..., ShardSet]

#: Bytes of one token in a shard of the tests' capture spec.
TOKEN_BYTES = 48 + 4 + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shards"


@pytest.fixture
def open_set(folder: Path, spec: CaptureSpec, provenance: Provenance) -> Opener:
    """Opens a set whose shards hold ten tokens."""

    def opened(name: str = "w0", **changes: Any) -> ShardSet:
        facts: dict[str, Any] = {"spec": spec, "provenance": provenance} | changes
        return ShardSet(folder, name, 10 * TOKEN_BYTES, **facts)

    return opened


def store(shards: ShardSet, *samples: tuple[str, Any, Any, Any]) -> None:
    for sample in samples:
        shards.append(*sample)
    shards.commit()


def shards_in(folder: Path) -> dict[str, tuple[bool, int]]:
    """Whether each shard is sealed and how many sample rows it has, by plain h5py."""
    found = {}
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as hdf5:
            rows = hdf5["index"][...]
            found[path.name] = bool(hdf5.attrs["sealed"]), int((rows["state"] == 1).sum())
    return found


def test_no_shard_before_the_first_sample(folder: Path, open_set: Opener) -> None:
    """A worker that stores nothing leaves no shard, only the folder."""
    open_set().close()
    assert list(folder.iterdir()) == []


def test_full_shards_are_sealed_and_followed(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """A sample without room seals the shard and goes to the next; none is lost or split."""
    with open_set() as shards:
        for number in range(5):
            store(shards, numbered_sample(number, 4))
    assert shards_in(folder) == {
        "w0-00001.h5": (True, 2),
        "w0-00002.h5": (True, 2),
        "w0-00003.h5": (False, 1),
    }
    assert [verify_shard(path).faults for path in sorted(folder.glob("*.h5"))] == [(), (), ()]


def test_rolling_over_commits(folder: Path, open_set: Opener, numbered_sample: Sampler) -> None:
    """Samples that wait for their commit when the shard is full are durable after the next one."""
    shards = open_set()
    for number in range(3):
        shards.append(*numbered_sample(number, 4))
    shards.commit()
    assert all(f"{number:032x}" in shards for number in range(3))
    shards.close()
    assert [rows for _, rows in shards_in(folder).values()] == [2, 1]


def test_newest_shard_is_continued(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """A worker that starts again goes on in its unsealed shard and knows all its keys."""
    with open_set() as shards:
        for number in range(3):
            store(shards, numbered_sample(number, 4))
    with open_set() as shards:
        assert all(f"{number:032x}" in shards for number in range(3))
        assert not shards.append(*numbered_sample(0, 4)), "a key of a sealed shard"
        assert not shards.append(*numbered_sample(2, 4)), "a key of the open shard"
        store(shards, numbered_sample(3, 4))
    assert shards_in(folder) == {"w0-00001.h5": (True, 2), "w0-00002.h5": (False, 2)}


def test_sealed_shard_is_followed(folder: Path, open_set: Opener, numbered_sample: Sampler) -> None:
    """After an explicit seal the next sample starts a shard, in this process or the next."""
    with open_set() as shards:
        store(shards, numbered_sample(0))
        shards.seal()
        shards.seal()
        store(shards, numbered_sample(1))
        shards.seal()
    with open_set() as shards:
        store(shards, numbered_sample(2))
    assert list(shards_in(folder).values()) == [(True, 1), (True, 1), (False, 1)]


def test_key_counts_once_committed(open_set: Opener, numbered_sample: Sampler) -> None:
    """A key is contained when its sample is durable, not when it is written."""
    with open_set() as shards:
        shards.append(*numbered_sample(0))
        assert f"{0:032x}" not in shards
        shards.commit()
        assert f"{0:032x}" in shards


def test_large_sample_gets_a_shard_of_its_size(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """A sample larger than a shard is stored all the same."""
    with open_set() as shards:
        store(shards, numbered_sample(0, 4), numbered_sample(1, 1000), numbered_sample(2, 4))
    assert list(shards_in(folder).values()) == [(True, 1), (True, 1), (False, 1)]
    assert SampleTable.scan(folder).num_tokens.sum() == 1008


def test_keys_of_other_writers_are_known(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """What another worker stored is not stored again, whether its shard is open, sealed or idle."""
    with open_set("w0") as busy, open_set("w1") as other:
        store(busy, *(numbered_sample(number, 4) for number in range(3)))
        store(other, numbered_sample(7, 4))
        with open_set("w2") as shards:
            assert all(f"{number:032x}" in shards for number in (0, 1, 2, 7))
            assert not shards.append(*numbered_sample(7, 4))
    assert "w2-00001.h5" not in shards_in(folder)


def test_samples_that_others_add_later_are_known(
    open_set: Opener, numbered_sample: Sampler
) -> None:
    """A job that was queued twice is not extracted twice, whichever process gets it."""
    with open_set(name="w0") as early, open_set(name="w1") as other:
        assert numbered_sample(1)[0] not in early
        for number in (1, 2):
            other.append(*numbered_sample(number))
            other.commit()
        assert numbered_sample(1)[0] in early
        assert numbered_sample(2)[0] in early
        assert numbered_sample(3)[0] not in early


def test_torn_sample_of_another_writer_does_not_count(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """What a crash left half-written in another worker's shard is not taken for stored."""
    with open_set("w0") as shards:
        store(shards, numbered_sample(0, 4))
        store(shards, numbered_sample(1, 4))
    path = folder / "w0-00001.h5"
    with h5py.File(path) as hdf5:
        position = hdf5["states"].id.get_offset() + 5 * 48
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes(8))
    with open_set("w1") as shards:
        assert f"{0:032x}" in shards
        assert f"{1:032x}" not in shards


def test_sample_that_was_given_up_is_not_stored_any_more(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """A worker that knew of a sample extracts it anew once its row was made void by repair."""
    with open_set("w0") as shards:
        store(shards, *(numbered_sample(number, 4) for number in range(3)))
        shards.seal()
    path = folder / "w0-00001.h5"
    with open_set("w1") as shards:
        assert f"{1:032x}" in shards
        with h5py.File(path) as hdf5:
            position = hdf5["index"].id.get_offset() + ROW_BYTES
        row = IndexRow.decode(path.read_bytes()[position : position + ROW_BYTES], 1)
        assert row is not None
        with path.open("r+b") as file:
            file.seek(position)
            file.write(replace(row, state=STATE_VOID).encode())
        assert f"{1:032x}" not in shards
        assert all(f"{number:032x}" in shards for number in (0, 2))
        assert shards.append(*numbered_sample(1, 4))


def test_sample_whose_sync_failed_is_stored_for_nobody(
    open_set: Opener, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages may be in memory alone, where they look right to every other process."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with open_set("w1") as other:
        with open_set("w0") as broken:
            store(broken, numbered_sample(1, 4))
            broken.append(*numbered_sample(2, 4))
            with monkeypatch.context() as patch:
                patch.setattr(os, "fdatasync", fail)
                with pytest.raises(StopError, match="Input/output error"):
                    broken.commit()
            assert f"{2:032x}" not in other
            assert f"{1:032x}" in other
        store(other, numbered_sample(2, 4))
    with open_set("w0") as again:
        assert f"{2:032x}" in again
        store(again, numbered_sample(3, 4))
    assert {entry.key for entry in SampleTable.scan(again._folder)} == {
        f"{number:032x}" for number in (1, 2, 3)
    }


def test_live_writer_of_the_same_name_is_refused(
    open_set: Opener, numbered_sample: Sampler
) -> None:
    """Two workers of one name cannot both append."""
    with open_set() as shards:
        store(shards, numbered_sample(0))
        with pytest.raises(StopError, match="a name of its own") as refusal:
            open_set()
        assert refusal.value.kind == "shard-locked"


def test_two_lazy_writers_of_one_name(open_set: Opener, numbered_sample: Sampler) -> None:
    """Where neither has a shard yet, the second to want one is refused, and the first unharmed."""
    with open_set() as first, open_set() as second:
        store(first, numbered_sample(0))
        with pytest.raises(StopError, match="w0-00001") as refusal:
            second.append(*numbered_sample(1))
        assert refusal.value.kind == "shard-locked"
        store(first, numbered_sample(2))
        assert f"{2:032x}" in first


@pytest.mark.parametrize("name", ["w0", "w1"])
def test_other_capture_spec_is_refused(
    open_set: Opener, spec: CaptureSpec, numbered_sample: Sampler, name: str
) -> None:
    """A folder holds one capture spec; a shard of another is named, and its lock left free."""
    with open_set("w0") as shards:
        store(shards, numbered_sample(0))
    with pytest.raises(StopError, match=r"w0-00001\.h5 holds states of capture spec") as refusal:
        open_set(name, spec=replace(spec, layers=(1, 2)))
    assert refusal.value.kind == "spec-mismatch"
    open_set("w0").close()


def test_other_provenance_starts_a_shard(
    folder: Path, open_set: Opener, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """Samples of another server version never go under the old one's attributes."""
    with open_set() as shards:
        store(shards, numbered_sample(0))
    with open_set(provenance=replace(provenance, sglang_version="0.6.0")) as shards:
        assert f"{0:032x}" in shards
        store(shards, numbered_sample(1))
    assert list(shards_in(folder).values()) == [(True, 1), (False, 1)]
    with h5py.File(folder / "w0-00002.h5") as hdf5:
        assert hdf5.attrs["sglang_version"] == "0.6.0"


def test_unreadable_shard_in_the_folder_stops_the_worker(folder: Path, open_set: Opener) -> None:
    """A worker does not start where it cannot know what is stored."""
    folder.mkdir()
    (folder / "w9-00001.h5").write_bytes(b"not a shard")
    with pytest.raises(StopError, match=r"w9-00001\.h5 is not an HDF5 file") as refusal:
        open_set()
    assert refusal.value.kind == "shard-not-hdf5"


def test_missing_run_folder(tmp_path: Path, spec: CaptureSpec, provenance: Provenance) -> None:
    """Shards are not put where no run is."""
    with pytest.raises(MissingError, match="no folder") as refusal:
        ShardSet(tmp_path / "no-run" / "shards", "w0", 1000, spec, provenance)
    assert refusal.value.kind == "folder-missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b"])
def test_unfit_writer_name(open_set: Opener, name: str) -> None:
    """A writer name that is no part of a file name is refused."""
    with pytest.raises(ValueError, match="writer name"):
        open_set(name)


def test_names_that_begin_alike_are_apart(
    folder: Path, open_set: Opener, numbered_sample: Sampler
) -> None:
    """The shards of w0-00001 are not taken for shards of w0."""
    with open_set("w0-00001") as other, open_set("w0") as shards:
        store(other, numbered_sample(0))
        store(shards, numbered_sample(1))
    assert sorted(shards_in(folder)) == ["w0-00001-00001.h5", "w0-00001.h5"]


def test_sparse_until_used(
    folder: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """A shard takes disk for what is in it, and sealing leaves no room behind."""
    with ShardSet(folder, "w0", 1 << 30, spec, provenance) as shards:
        store(shards, numbered_sample(0))
        path = folder / "w0-00001.h5"
        assert path.stat().st_size > 1 << 30
        assert path.stat().st_blocks * 512 < 1 << 20
        shards.seal()
        with h5py.File(path) as hdf5:
            end = hdf5["states"].id.get_offset() + hdf5["states"].nbytes
            assert hdf5["states"].shape == (1, 24)
            assert np.array_equal(hdf5["states"][...], numbered_sample(0)[3])
        assert path.stat().st_size == end
