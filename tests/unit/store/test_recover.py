"""What a writer makes of a shard that was not closed in order."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import StopError
from statetap_store import ShardReader, ShardWriter, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]

ROW = 128


def offset_of(path: Path, dataset: str) -> int:
    with h5py.File(path) as hdf5:
        return int(hdf5[dataset].id.get_offset())


def row_of(path: Path, sequence: int) -> dict[str, int]:
    with h5py.File(path) as hdf5:
        row = hdf5["index"][sequence]
        return {name: int(row[name]) for name in ("state", "token_offset", "num_tokens")}


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def damage_payload(path: Path, sequence: int, dataset: str, element_bytes: int) -> None:
    """Changes one bit of the last token's part of a sample."""
    row = row_of(path, sequence)
    last = row["token_offset"] + row["num_tokens"] - 1
    position = offset_of(path, dataset) + last * element_bytes
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 1]))


def stored(path: Path) -> dict[str, bytes]:
    """Keys and states of all samples, each checked."""
    with ShardReader(path) as reader:
        return {entry.key: reader.read(entry).states.tobytes() for entry in reader.samples}


def expected(numbered_sample: Sampler, *numbers: int) -> dict[str, bytes]:
    return {f"{n:032x}": numbered_sample(n)[3].tobytes() for n in numbers}


@pytest.mark.parametrize("num_bytes", [1, 4, 64, 120, 127])
def test_half_a_row_is_dropped(shard: Path, numbered_sample: Sampler, num_bytes: int) -> None:
    """A last index row that was cut anywhere is given up, with nothing before it lost."""
    start = offset_of(shard, "index") + 9 * ROW + num_bytes
    overwrite(shard, start, bytes(ROW - num_bytes))
    with ShardWriter.open(shard) as writer:
        assert writer.num_samples == 9
        assert writer.append(*numbered_sample(9))
    assert stored(shard) == expected(numbered_sample, *range(10))
    assert verify_shard(shard).faults == ()


@pytest.mark.parametrize(
    ("dataset", "element_bytes"), [("states", 48), ("input_ids", 4), ("loss_mask", 1)]
)
def test_row_without_its_payload_is_dropped(
    shard: Path, numbered_sample: Sampler, dataset: str, element_bytes: int
) -> None:
    """A last sample of which any part is not what its row says is given up, key and all."""
    tokens = row_of(shard, 9)
    damage_payload(shard, 9, dataset, element_bytes)
    with ShardWriter.open(shard) as writer:
        assert f"{9:032x}" not in writer.keys
        assert writer.append(*numbered_sample(9))
    assert row_of(shard, 9)["state"] == 2
    assert row_of(shard, 10) == tokens, "the tokens are used again"
    assert stored(shard) == expected(numbered_sample, *range(10))
    assert verify_shard(shard).faults == ()


def test_all_of_an_unfinished_commit_is_proven(shard: Path, numbered_sample: Sampler) -> None:
    """Of samples committed together each is kept or dropped for itself, however many they are."""
    with ShardWriter.open(shard) as writer:
        for number in range(10, 110):
            writer.append(*numbered_sample(number))
    broken = {10, 57, 58, 108, 109}
    for number in broken:
        damage_payload(shard, number, "states", 48)
    with ShardWriter.open(shard) as writer:
        kept = set(range(110)) - broken
        assert writer.keys == {f"{n:032x}" for n in kept}
        assert writer.append(*numbered_sample(57))
    assert stored(shard) == expected(numbered_sample, *kept, 57)
    assert verify_shard(shard).faults == ()


def test_lost_page_of_rows_is_void(shard: Path, numbered_sample: Sampler) -> None:
    """Rows of an unfinished commit that never reached the disk do not hide those that did."""
    with ShardWriter.open(shard) as writer:
        for number in range(10, 60):
            writer.append(*numbered_sample(number))
    overwrite(shard, offset_of(shard, "index") + 20 * ROW, bytes(20 * ROW))
    with ShardWriter.open(shard) as writer:
        assert writer.num_samples == 40
    assert {row_of(shard, sequence)["state"] for sequence in range(20, 40)} == {2}
    assert stored(shard) == expected(numbered_sample, *range(20), *range(40, 60))
    assert verify_shard(shard).faults == ()


def test_corruption_is_left_alone(shard: Path, numbered_sample: Sampler) -> None:
    """A damaged row with valid rows after it costs its own sample; its place is never reused."""
    position = offset_of(shard, "index") + 4 * ROW
    damaged = shard.read_bytes()[position : position + ROW]
    damaged = damaged[:60] + bytes([damaged[60] ^ 1]) + damaged[61:]
    overwrite(shard, position, damaged)
    with ShardWriter.open(shard) as writer:
        assert writer.num_samples == 9
        assert writer.append(*numbered_sample(4))
    assert shard.read_bytes()[position : position + ROW] == damaged
    assert row_of(shard, 10)["token_offset"] == sum(1 + n % 13 for n in range(10))
    assert stored(shard) == expected(numbered_sample, *range(10))
    assert [(fault.kind, fault.key) for fault in verify_shard(shard).faults] == [
        ("row-corrupt", f"{4:032x}")
    ]


def test_junk_far_behind_is_cleared(shard: Path, numbered_sample: Sampler) -> None:
    """A damaged unused row is cleared when the shard is opened, and no row is skipped for it."""
    overwrite(shard, offset_of(shard, "index") + 50 * ROW + 7, b"\x10")
    with ShardReader(shard) as reader:
        assert len(reader.samples) == 10
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
    assert row_of(shard, 10)["state"] == 1
    assert verify_shard(shard).faults == ()


def test_corruption_before_the_tail_keeps_its_tokens(shard: Path, numbered_sample: Sampler) -> None:
    """A damaged row just before a dropped one keeps its tokens out of use."""
    tokens = row_of(shard, 9)
    damage_payload(shard, 9, "states", 48)
    overwrite(shard, offset_of(shard, "index") + 8 * ROW + 60, b"\xff\xff\xff")
    for number in (20, 21):
        with ShardWriter.open(shard) as writer:
            writer.append(*numbered_sample(number))
    assert row_of(shard, 10)["token_offset"] == tokens["token_offset"]
    assert stored(shard) == expected(numbered_sample, *range(8), 20, 21)


def test_durable_payloads_are_not_read(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening costs the last commit, not the whole shard."""
    read: list[int] = []
    real = os.preadv

    def record(fd: int, buffers: list[memoryview], offset: int) -> int:
        read.append(offset)
        return real(fd, buffers, offset)

    states = offset_of(shard, "states")
    last = states + 48 * row_of(shard, 9)["token_offset"]
    monkeypatch.setattr(os, "preadv", record)
    ShardWriter.open(shard).close()
    assert {offset for offset in read if offset >= states} == {last}
    assert len(numbered_sample(9)[1]) == 10


def test_proven_samples_are_synced_before_they_count(
    shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last commit's bytes are written and synced again: they may exist in memory only."""
    calls: list[tuple[str, int]] = []
    write, sync = os.pwrite, os.fdatasync

    def record_write(fd: int, data: bytes, offset: int) -> int:
        calls.append(("write", offset))
        return write(fd, data, offset)

    def record_sync(fd: int) -> None:
        calls.append(("sync", 0))
        sync(fd)

    offsets = {name: offset_of(shard, name) for name in ("index", "input_ids", "states")}
    token = row_of(shard, 9)["token_offset"]
    before = shard.read_bytes()
    monkeypatch.setattr(os, "pwrite", record_write)
    monkeypatch.setattr(os, "fdatasync", record_sync)
    ShardWriter.open(shard).close()
    assert calls[-1] == ("sync", 0)
    assert ("write", offsets["index"] + 9 * ROW) in calls
    assert ("write", offsets["input_ids"] + 4 * token) in calls
    assert ("write", offsets["states"] + 48 * token) in calls
    assert shard.read_bytes() == before


def test_void_rows_are_written_again(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recovery whose sync failed may have left its void rows in memory only."""
    damage_payload(shard, 9, "states", 48)
    ShardWriter.open(shard).close()
    void = shard.read_bytes()[offset_of(shard, "index") + 9 * ROW :][:ROW]
    written: list[tuple[bytes, int]] = []
    real = os.pwrite

    def record(fd: int, data: bytes, offset: int) -> int:
        written.append((bytes(data), offset))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", record)
    with ShardWriter.open(shard) as writer:
        assert (void, offset_of(shard, "index") + 9 * ROW) in written
        assert writer.append(*numbered_sample(9))


@pytest.mark.parametrize("damage", [(0, b"\0" * 64), (2000, b"\xff" * 500), (0, b"\0" * 9000)])
def test_damaged_header_is_restored(
    shard: Path, numbered_sample: Sampler, damage: tuple[int, bytes]
) -> None:
    """A header that was torn or overwritten is put back, and is read around until then."""
    whole = shard.read_bytes()
    overwrite(shard, *damage)
    assert stored(shard) == expected(numbered_sample, *range(10))
    ShardWriter.open(shard).close()
    assert shard.read_bytes() == whole
    with h5py.File(shard) as hdf5:
        assert hdf5["input_ids"][0] == numbered_sample(0)[1][0]


def test_unproven_header_is_not_written_behind(shard: Path) -> None:
    """Without an intact copy of its header a shard can be read and is not appended to."""
    overwrite(shard, 1024 * 1024 + 100, b"\xff\xfe\xfd")
    with pytest.raises(StopError, match="no intact copy of its header") as refusal:
        ShardWriter.open(shard)
    assert refusal.value.kind == "header-unproven"
    assert len(stored(shard)) == 10
