"""A disk that really fills up, at every place where it can."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statetap_contract import CaptureSpec, StopError
from statetap_store import Provenance, ShardReader, ShardSet, ShardWriter, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Opener = Callable[[], ShardSet]

KIB = 1024
MIB = 1024 * 1024
ROW = 128

#: Blocks of the small disk.
PAGE = 4096

#: Twelve samples of 5.3 kB, four to a shard.
NUM_SAMPLES = 12
NUM_TOKENS = 100
SHARD_BYTES = 4 * NUM_TOKENS * (48 + 4 + 1)


@pytest.fixture
def open_set(small_disk: Path, spec: CaptureSpec, provenance: Provenance) -> Opener:
    """Opens worker w0's shards on the small disk."""
    return lambda: ShardSet(small_disk / "shards", "w0", SHARD_BYTES, spec, provenance)


def leave_bytes(disk: Path, num_bytes: int) -> None:
    """Takes all of a disk's room but this."""
    free = os.statvfs(disk)
    with (disk / "ballast").open("ab") as file:
        num_taken = free.f_bavail * free.f_bsize - num_bytes
        os.posix_fallocate(file.fileno(), file.tell(), num_taken)


def leave_names(disk: Path, num_names: int) -> None:
    """Takes all of a disk's room for names but this."""
    for number in range(os.statvfs(disk).f_favail - num_names):
        (disk / f"ballast-{number}").touch()


def make_room(disk: Path) -> None:
    for ballast in disk.glob("ballast*"):
        ballast.unlink()


def store_all(shards: ShardSet, numbered_sample: Sampler, acknowledged: set[int]) -> None:
    """Appends and commits all samples, rolling over, and seals the last shard."""
    for number in range(NUM_SAMPLES):
        shards.append(*numbered_sample(number, NUM_TOKENS))
        shards.commit()
        acknowledged.add(number)
    shards.seal()


def check_visible(folder: Path, numbered_sample: Sampler, acknowledged: set[int]) -> None:
    """All that is acknowledged is there and right, no shard is faulty, nothing else lies about."""
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    shards = sorted(name for name in names if name.endswith(".h5"))
    # A shard that could not be made leaves its lock.
    assert names - set(shards) <= {f"w0-{number:05d}.h5.lock" for number in range(1, 4)}
    found = []
    for name in shards:
        assert verify_shard(folder / name).faults == ()
        with ShardReader(folder / name) as reader:
            for entry in reader.samples:
                states = numbered_sample(int(entry.key, 16), NUM_TOKENS)[3]
                assert np.array_equal(reader.read(entry).states, states)
                found.append(int(entry.key, 16))
    assert sorted(found) == sorted(acknowledged)


def stage_of(error: StopError) -> str:
    """What there was no room for, out of the one sentence that says so."""
    assert error.kind == "disk-full"
    sentence = r"no room to (.*) in /\S+ \(No space left on device\): free some space, then .*"
    match = re.fullmatch(sentence, error.message)
    assert match is not None, error.message
    return re.sub("sample .*", "sample", match[1])


def sweep(
    small_disk: Path,
    open_set: Opener,
    numbered_sample: Sampler,
    leave: Callable[[Path], None],
    *,
    is_reopened: bool,
) -> str | None:
    """Stores all samples with little room, makes room, and goes on.

    Returns:
        What there was no room for; None when there was enough.
    """
    acknowledged: set[int] = set()
    shards: ShardSet | None = None
    stage = None
    leave(small_disk)
    try:
        shards = open_set()
        store_all(shards, numbered_sample, acknowledged)
    except StopError as error:
        stage = stage_of(error)
        check_visible(small_disk / "shards", numbered_sample, acknowledged)
        if shards is not None and is_reopened:
            # A worker that starts on the full disk knows what it has.
            shards.close()
            shards = open_set()
            assert all(f"{number:032x}" in shards for number in acknowledged)
        make_room(small_disk)
        shards = shards or open_set()
        store_all(shards, numbered_sample, acknowledged)
    shards.close()
    make_room(small_disk)
    check_visible(small_disk / "shards", numbered_sample, set(range(NUM_SAMPLES)))
    for path in (small_disk / "shards").iterdir():
        path.unlink()
    (small_disk / "shards").rmdir()
    return stage


@pytest.mark.parametrize("is_reopened", [False, True])
def test_no_room_for_bytes(
    small_disk: Path, open_set: Opener, numbered_sample: Sampler, *, is_reopened: bool
) -> None:
    """Whatever the disk has no room for, a sentence says so, nothing is harmed, and it goes on."""
    stages = []
    for num_bytes in range(0, 1024 * KIB, PAGE):

        def leave(disk: Path, num_bytes: int = num_bytes) -> None:
            leave_bytes(disk, num_bytes)

        stage = sweep(small_disk, open_set, numbered_sample, leave, is_reopened=is_reopened)
        if stage is None:
            break
        stages.append(stage)
    assert stage is None
    assert len(stages) > 40
    assert set(stages) == {"make a new shard", "store sample", "seal the shard"}


@pytest.mark.parametrize("is_reopened", [False, True])
def test_no_room_for_names(
    small_disk: Path, open_set: Opener, numbered_sample: Sampler, *, is_reopened: bool
) -> None:
    """A file system that has no room for another file is full like any other."""
    stages = []
    for num_names in range(16):

        def leave(disk: Path, num_names: int = num_names) -> None:
            leave_names(disk, num_names)

        stage = sweep(small_disk, open_set, numbered_sample, leave, is_reopened=is_reopened)
        if stage is None:
            break
        stages.append(stage)
    assert stage is None
    assert stages[:4] == ["make a folder", "make a lock", "make a new shard", "make a new shard"]
    assert set(stages) == {"make a folder", "make a lock", "make a new shard"}


def copy_without(shard: Path, copy: Path, lost: range) -> None:
    """Copies a shard's blocks but those that never reached the disk, as a power cut leaves it."""
    data = shard.read_bytes()
    fd = os.open(copy, os.O_CREAT | os.O_RDWR, 0o644)
    os.ftruncate(fd, len(data))
    for offset in range(0, len(data), PAGE):
        block = data[offset : offset + PAGE]
        if any(block) and offset not in lost:
            os.pwrite(fd, block, offset)
    os.close(fd)


def no_room_to_recover(path: Path) -> None:
    leave_bytes(path.parent, 0)
    with pytest.raises(StopError) as error:
        ShardWriter.open(path)
    assert stage_of(error.value) == "recover samples"
    make_room(path.parent)


def test_no_room_to_void_lost_rows(small_disk: Path, shard: Path, numbered_sample: Sampler) -> None:
    """Rows whose block was lost are given up once there is room; the others are read meanwhile."""
    with ShardWriter.open(shard) as writer:
        for number in range(10, 80):
            writer.append(*numbered_sample(number))
    path = small_disk / shard.name
    first = 2 * MIB + 32 * ROW
    copy_without(shard, path, range(first, first + PAGE))
    no_room_to_recover(path)
    kept = [number for number in range(80) if not 32 <= number < 64]
    with ShardReader(path) as reader:
        assert [int(entry.key, 16) for entry in reader.samples] == kept
        for entry in reader.samples:
            reader.read(entry)
    with ShardWriter.open(path) as writer:
        assert writer.keys == {f"{number:032x}" for number in kept}
        assert writer.append(*numbered_sample(40))
    assert verify_shard(path).faults == ()


def test_no_room_to_restore_the_header(small_disk: Path, shard: Path) -> None:
    """A header whose block was lost is read from its copy, and put back once there is room."""
    path = small_disk / shard.name
    copy_without(shard, path, range(PAGE))
    no_room_to_recover(path)
    with ShardReader(path) as reader:
        assert len([reader.read(entry) for entry in reader.samples]) == 10
    ShardWriter.open(path).close()
    assert path.read_bytes() == shard.read_bytes()


def test_opening_needs_no_room(small_disk: Path, shard: Path) -> None:
    """On a full disk a shard can be opened, even if its sealing was interrupted."""
    path = small_disk / shard.name
    copy_without(shard, path, range(0))
    with path.open("r+b") as file:
        file.seek(MIB + MIB // 2)
        file.write(b"\x00\x20\x00\x00\x00\x00\x00\x00torn")
    leave_bytes(small_disk, 0)
    ShardWriter.open(path).close()
    assert verify_shard(path).faults == ()


def test_too_much_provenance(tmp_path: Path, spec: CaptureSpec, numbered_sample: Sampler) -> None:
    """A header that its copy has no room for is refused, and nothing is left behind."""
    provenance = Provenance("run-1", "w0", "x" * 600_000, "0.5.23", "0.1.0", (2, 4))
    with (
        ShardSet(tmp_path, "w0", 1 << 20, spec, provenance) as shards,
        pytest.raises(ValueError, match="shorten the provenance"),
    ):
        shards.append(*numbered_sample(0))
    assert [path.name for path in tmp_path.iterdir()] == ["w0-00001.h5.lock"]
