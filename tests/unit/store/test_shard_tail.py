"""A shard's samples are given once, when they are durable."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import CaptureSpec, CheckError, MissingError
from statetap_store import Provenance, ShardWriter, repair_shard, seal, shard_tail
from statetap_store.index_row import Rows, keys_of
from statetap_store.shard_tail import ShardTail

Sampler = Callable[..., tuple[str, Any, Any, Any]]


@pytest.fixture
def often_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look proves what was given, as else one a minute does."""
    monkeypatch.setattr(shard_tail, "_PROOF_INTERVAL_S", 0.0)


def numbers(samples: Rows | None) -> list[int]:
    assert samples is not None
    return [int(key, 16) for key in keys_of(samples)]


def put_back(path: Path, seconds: float) -> None:
    """Lets the shard look as if it had been written so long ago."""
    then = path.stat().st_mtime_ns - int(seconds * 1e9)
    os.utime(path, ns=(then, then))


def break_payload(path: Path, number: int) -> None:
    """Changes a byte of the states of a sample."""
    with h5py.File(path) as hdf5:
        position = hdf5["states"].id.get_offset() + 48 * int(hdf5["index"][number]["token_offset"])
    with path.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")


def test_committed_samples_are_given_once(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """While a writer appends, each look gives what is durable since the last, the last sample late.

    A row says how many before it are durable, so the last one is certain only when another comes or
    when nothing was written between two looks.
    """
    path = tmp_path / "w0-00001.h5"
    tail = ShardTail(path)
    given: list[int] = []
    with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
        for number in range(20):
            writer.append(*numbered_sample(number))
            writer.commit()
            given += numbers(tail.read_new())
            assert given == list(range(number))
        assert numbers(tail.read_new()) == [19]
        assert numbers(tail.read_new()) == []
        writer.append(*numbered_sample(20))
        writer.commit()
        assert numbers(tail.read_new()) == []
        assert numbers(tail.read_new()) == [20]


def test_uncommitted_samples_are_not_given_while_they_are_written(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """What a crash may take is no promise; given after a pause, it was synced by the tail."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
        tail = ShardTail(path)
        for number in range(3):
            writer.append(*numbered_sample(number))
            assert numbers(tail.read_new()) == []
        assert numbers(tail.read_new()) == [0, 1, 2]


def test_a_sample_that_is_not_whole_is_not_given(shard: Path, numbered_sample: Sampler) -> None:
    """A crash left the last row with half a payload; recovery voids it and the next is given."""
    break_payload(shard, 9)
    tail = ShardTail(shard)
    assert numbers(tail.read_new()) == list(range(9))
    for _ in range(2):
        assert numbers(tail.read_new()) == []
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(11))
        writer.commit()
    assert numbers(tail.read_new()) + numbers(tail.read_new()) == [11]


@pytest.mark.usefixtures("often_proven")
def test_a_sample_that_repair_gave_up_is_taken_back(shard: Path) -> None:
    """The tail says so and is of no use any more; another one gives the rest."""
    tail = ShardTail(shard)
    assert numbers(tail.read_new()) + numbers(tail.read_new()) == list(range(10))
    break_payload(shard, 3)
    assert numbers(tail.read_new()) == []
    repair_shard(shard)
    assert tail.read_new() is None
    fresh = ShardTail(shard)
    left = [*range(3), *range(4, 10)]
    assert numbers(fresh.read_new()) + numbers(fresh.read_new()) == left


@pytest.mark.usefixtures("often_proven")
def test_sealing_takes_nothing_back(shard: Path) -> None:
    """The seal moves the payload and leaves the samples what they were."""
    tail = ShardTail(shard)
    assert len(numbers(tail.read_new())) == 9
    seal(shard)
    assert numbers(tail.read_new()) == [9]
    assert numbers(tail.read_new()) == []


def test_another_file_of_the_name_is_another_shard(shard: Path, tmp_path: Path) -> None:
    """What was given of the first does not hold for the second."""
    tail = ShardTail(shard)
    tail.read_new()
    other = tmp_path / "other"
    other.write_bytes(shard.read_bytes())
    other.replace(shard)
    assert tail.read_new() is None


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_shard_that_rests_is_not_opened(
    shard: Path, monkeypatch: pytest.MonkeyPatch, *, is_sealed: bool
) -> None:
    """Once it was read long enough after its last change, a look costs a stat at most."""
    if is_sealed:
        seal(shard)
    put_back(shard, 5)
    tail = ShardTail(shard)
    for _ in range(2):
        tail.read_new()
    opened: list[object] = []
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments))
    for _ in range(3):
        assert numbers(tail.read_new()) == []
    assert opened == []


def test_what_is_no_shard_is_named(tmp_path: Path) -> None:
    """Missing and foreign files are errors of their own kinds."""
    path = tmp_path / "w0-00001.h5"
    with pytest.raises(MissingError) as missing:
        ShardTail(path).read_new()
    assert missing.value.kind == "shard-missing"
    path.write_bytes(b"nothing")
    with pytest.raises(CheckError, match="is not an HDF5 file"):
        ShardTail(path).read_new()
