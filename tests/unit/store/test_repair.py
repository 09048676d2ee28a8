"""Repair puts right what can be, gives up what cannot, and never touches a sound sample."""

import errno
import os
import random
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xxhash
from statetap_contract import CaptureSpec, CheckError, MissingError, StopError
from statetap_store import (
    Provenance,
    RunScanner,
    ShardReader,
    ShardWriter,
    repair_shard,
    seal,
    verify_shard,
)

Sampler = Callable[..., tuple[str, Any, Any, Any]]
CrashAt = Callable[[int], AbstractContextManager[list[str]]]

MIB = 1024 * 1024
ROW = 128

#: Times that a shard is damaged at random and repaired, each at up to so many samples.
NUM_SHARDS = 40
MOST_DAMAGED = 7
SEED = 77

#: Behind each of the first samples there are more than are ever damaged.
NUM_UNLIKE_LAST = 30 - MOST_DAMAGED - 1


class DamagedShard:
    """A shard with samples 0 to 29, and what a correct repair keeps and gives up."""

    def __init__(self, path: Path, sampler: Sampler) -> None:
        self.path = path
        self.data = bytearray(path.read_bytes())
        with h5py.File(path) as hdf5:
            self.start = {name: hdf5[name].id.get_offset() for name in hdf5}
            self.rows = hdf5["index"][...]
            self.is_sealed = bool(hdf5.attrs["sealed"])
        self.header_bytes = int.from_bytes(self.data[MIB : MIB + 8], "little")
        #: Row number of each sample.
        self.places = {
            row["key"].decode(): number for number, row in enumerate(self.rows) if row["state"] == 1
        }
        self.samples = {
            key: b"".join(part.tobytes() for part in parts)
            for key, *parts in map(sampler, range(30))
        }
        self.lost: set[str] = set()
        self.num_unknown = 0

    def flip(self, position: int, bit: int) -> None:
        self.data[position] ^= 1 << bit

    def row_place(self, key: str) -> int:
        return int(self.start["index"]) + ROW * self.places[key]

    def payload_place(self, key: str, dataset: str) -> tuple[int, int]:
        """First byte of a sample in a dataset, and its bytes."""
        row = self.rows[self.places[key]]
        token_bytes = {"input_ids": 4, "loss_mask": 1, "states": 48}[dataset]
        place = self.start[dataset] + token_bytes * int(row["token_offset"])
        return place, token_bytes * int(row["num_tokens"])

    def craft(self, sample: str, **changes: Any) -> None:
        """Changes a sample's row and gives it the right checksum."""
        place = self.row_place(sample)
        row = np.frombuffer(bytes(self.data[place : place + ROW]), self.rows.dtype).copy()
        for name, value in changes.items():
            row[name] = value
        self.data[place : place + ROW] = row.tobytes()
        digest = xxhash.xxh3_64_intdigest(bytes(self.data[place : place + 120]))
        self.data[place + 120 : place + ROW] = struct.pack("<Q", digest)

    def write(self) -> None:
        """Puts the damage on the disk."""
        self.path.write_bytes(self.data)


def wrong_payload(shard: DamagedShard, key: str, generator: random.Random) -> None:
    place, length = shard.payload_place(key, generator.choice(["input_ids", "loss_mask", "states"]))
    shard.flip(place + generator.randrange(length), generator.randrange(8))
    shard.lost.add(key)


def one_wrong_bit_in_the_row(shard: DamagedShard, key: str, generator: random.Random) -> None:
    shard.flip(shard.row_place(key) + generator.randrange(ROW), generator.randrange(8))


def row_and_payload(shard: DamagedShard, key: str, generator: random.Random) -> None:
    one_wrong_bit_in_the_row(shard, key, generator)
    wrong_payload(shard, key, generator)


def wrong_bytes_in_the_row(shard: DamagedShard, key: str, generator: random.Random) -> None:
    place = shard.row_place(key) + generator.choice([44, 56, 80, 100])
    shard.data[place : place + 20] = bytes(256 - 7 - n for n in range(20))
    shard.lost.add(key)


def empty_row(shard: DamagedShard, key: str, _: random.Random) -> None:
    place = shard.row_place(key)
    shard.data[place : place + ROW] = bytes(ROW)
    shard.lost.add(key)
    shard.num_unknown += 1


def row_with_another_place(shard: DamagedShard, key: str, generator: random.Random) -> None:
    shard.craft(key, **generator.choice([{"token_offset": 1 << 50}, {"token_offset": 2}]))
    shard.lost.add(key)


def states_of_no_model(shard: DamagedShard, key: str, generator: random.Random) -> None:
    """NaN, or a slot of zeros, under a checksum that is right."""
    place, length = shard.payload_place(key, "states")
    if generator.random() < 0.5:
        shard.data[place : place + 2] = b"\xc0\x7f"
    else:
        shard.data[place : place + 16] = bytes(16)
    states = bytes(shard.data[place : place + length])
    shard.craft(key, states_xxh3=xxhash.xxh3_64_intdigest(states))
    shard.lost.add(key)


SAMPLE_DAMAGES = (
    wrong_payload,
    one_wrong_bit_in_the_row,
    row_and_payload,
    wrong_bytes_in_the_row,
    empty_row,
    row_with_another_place,
    states_of_no_model,
)


def damage_header(shard: DamagedShard, generator: random.Random) -> None:
    """Header or copies, but for the last copy that is needed."""
    places = {
        "header": (0, shard.header_bytes),
        "slot 0": (MIB, 16 + shard.header_bytes),
        "slot 1": (MIB + MIB // 2, 16 + shard.header_bytes),
    }
    choices = [["header"], ["slot 0"], ["slot 1"], ["slot 0", "slot 1"]]
    if shard.is_sealed:
        choices += [["header", "slot 0"], ["header", "slot 1"]]
    for name in generator.choice(choices):
        place, length = places[name]
        for _ in range(generator.choice([1, 40])):
            shard.flip(place + generator.randrange(length), generator.randrange(8))


def cut(shard: DamagedShard, generator: random.Random) -> None:
    """Somewhere in the last samples' states."""
    key = generator.choice(list(shard.samples)[-3:])
    place, length = shard.payload_place(key, "states")
    end = place + generator.randrange(length)
    for other in shard.samples:
        start, length = shard.payload_place(other, "states")
        if start + length > end:
            shard.lost.add(other)
    del shard.data[end:]


@pytest.fixture(params=[False, True], ids=["open", "sealed"])
def any_shard(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    spec: CaptureSpec,
    provenance: Provenance,
    numbered_sample: Sampler,
) -> Path:
    """Samples 0 to 29, some committed together, with a void row after the tenth."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
        for number in range(11):
            writer.append(*numbered_sample(number))
            writer.commit()
    shard = DamagedShard(path, numbered_sample)
    wrong_payload(shard, f"{10:032x}", random.Random(0))
    shard.write()
    with ShardWriter.open(path) as writer:
        for number in range(10, 30):
            writer.append(*numbered_sample(number))
            if number % 3 == 0:
                writer.commit()
    if request.param:
        seal(path)
    return path


def stored(path: Path) -> dict[str, bytes]:
    """All samples, each checked: key to ids, mask and states."""
    with ShardReader(path) as reader:
        samples = [reader.read(entry) for entry in reader.samples]
    return {
        s.key: b"".join(part.tobytes() for part in (s.token_ids, s.loss_mask, s.states))
        for s in samples
    }


def test_whatever_happened_to_it(any_shard: Path, numbered_sample: Sampler) -> None:
    """Random damage of every kind: after repair all is in order, and lost is what had to be."""
    whole = any_shard.read_bytes()
    for number in range(NUM_SHARDS):
        generator = random.Random(SEED + number)
        any_shard.write_bytes(whole)
        shard = DamagedShard(any_shard, numbered_sample)
        keys = generator.sample(list(shard.samples), generator.randint(1, MOST_DAMAGED))
        done = []
        if generator.random() < 0.5:
            damage_header(shard, generator)
        for key in keys:
            damage = generator.choice(SAMPLE_DAMAGES)
            if damage is empty_row and int(key, 16) >= NUM_UNLIKE_LAST:
                # Behind the last right row of an open shard nothing tells that there was another.
                damage = wrong_payload
            damage(shard, key, generator)
            done.append((damage.__name__, int(key, 16)))
        if generator.random() < 0.3:
            cut(shard, generator)
            done.append(("cut", len(shard.data)))
        shard.write()
        case = f"seed {SEED + number}: {done}"

        report = repair_shard(any_shard)
        assert report.is_intact, (case, report.left)
        lost = {fault.key for fault in report.lost if fault.key is not None}
        assert lost <= shard.lost, case
        assert sum(fault.key is None for fault in report.lost) == shard.num_unknown, case
        assert len(report.lost) == len(shard.lost), (case, report.lost)
        kept = {key: data for key, data in shard.samples.items() if key not in shard.lost}
        assert stored(any_shard) == kept, case
        assert report.num_samples == len(kept), case
        assert verify_shard(any_shard).faults == (), case

        before = any_shard.read_bytes()
        again = repair_shard(any_shard)
        assert (again.mended, again.lost, again.left) == ((), (), ()), case
        assert any_shard.read_bytes() == before, case
        with h5py.File(any_shard) as hdf5:
            rows = hdf5["index"][...]
        for key in kept:
            assert rows[shard.places[key]] == shard.rows[shard.places[key]], case
        if not shard.is_sealed:
            with ShardWriter.open(any_shard) as writer:
                for key in shard.lost:
                    assert writer.append(*numbered_sample(int(key, 16))), case
            assert stored(any_shard) == shard.samples, case
            assert verify_shard(any_shard).faults == (), case


def test_a_crash_at_every_step(
    any_shard: Path, numbered_sample: Sampler, crash_at: CrashAt
) -> None:
    """Wherever it is stopped, sound samples are there, and another repair finishes it."""
    shard, generator = DamagedShard(any_shard, numbered_sample), random.Random(1)
    for number, damage in enumerate(SAMPLE_DAMAGES):
        damage(shard, f"{2 * number:032x}", generator)
    cut(shard, generator)
    shard.flip(10, 1)
    if not shard.is_sealed:
        shard.flip(MIB + MIB // 2 + 10, 1)
    kept = {key: data for key, data in shard.samples.items() if key not in shard.lost}
    for call_number in range(200):
        shard.write()
        with crash_at(call_number) as made:
            try:
                repair_shard(any_shard)
            except KeyboardInterrupt:
                pass
            else:
                break
        assert repair_shard(any_shard).is_intact
        assert stored(any_shard) == kept
        assert verify_shard(any_shard).faults == ()
    assert "ftruncate" in made
    assert made[-1] == "fdatasync"
    assert len(made) > 15


def test_the_only_copy_of_an_open_header(shard: Path) -> None:
    """A damaged copy is made again, byte for byte, from a header that proves itself."""
    whole = shard.read_bytes()
    for position in (MIB + 2, MIB + 9, MIB + 5000):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        shard.write_bytes(damaged)
        report = repair_shard(shard)
        assert [fault.kind for fault in report.mended] == ["header-unproven"]
        assert (report.lost, report.left, report.num_samples) == ((), (), 10)
        assert shard.read_bytes() == whole


@pytest.mark.parametrize("position", [MIB + 2, MIB + 9, MIB + 5000])
def test_a_header_of_another_library(
    shard: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """What is left of a copy vouches for a header that this HDF5 would write differently."""
    whole = shard.read_bytes()
    damaged = bytearray(whole)
    damaged[position] ^= 4
    shard.write_bytes(damaged)
    monkeypatch.setattr("statetap_store.header.ShardHeader.encode", lambda _: b"other" * 1000)
    assert repair_shard(shard).is_intact
    assert shard.read_bytes() == whole


@pytest.mark.parametrize("is_sealed", [False, True])
def test_no_header_and_no_copy(shard: Path, *, is_sealed: bool) -> None:
    """Nothing is guessed: the file is left alone, and the sentence says where to put it."""
    if is_sealed:
        seal(shard)
    damaged = bytearray(shard.read_bytes())
    for position in (1, MIB + 40, MIB + MIB // 2 + 40):
        damaged[position] ^= 255
    shard.write_bytes(damaged)
    with pytest.raises(CheckError, match="move it out of the run's folder") as refusal:
        repair_shard(shard)
    assert refusal.value.kind == "beyond-repair"
    assert str(shard) in refusal.value.message
    assert shard.read_bytes() == damaged


def test_files_that_are_no_shards(tmp_path: Path) -> None:
    """Something else is refused as what it is, and a missing file leaves no lock behind."""
    with pytest.raises(MissingError) as missing:
        repair_shard(tmp_path / "none.h5")
    assert missing.value.kind == "shard-missing"
    assert list(tmp_path.iterdir()) == []
    text, foreign = tmp_path / "text.h5", tmp_path / "foreign.h5"
    text.write_text("hello")
    with h5py.File(foreign, "w") as hdf5:
        hdf5["x"] = np.arange(5)
    before = foreign.read_bytes()
    for path, kind in ((text, "beyond-repair"), (foreign, "shard-foreign")):
        with pytest.raises(CheckError) as refusal:
            repair_shard(path)
        assert refusal.value.kind == kind
    assert (text.read_text(), foreign.read_bytes()) == ("hello", before)


def test_a_shard_in_use(shard: Path) -> None:
    """A shard that a worker has open is refused and unchanged."""
    with ShardWriter.open(shard):
        before = shard.read_bytes()
        with pytest.raises(StopError, match="open for writing") as refusal:
            repair_shard(shard)
        assert refusal.value.kind == "shard-locked"
        assert shard.read_bytes() == before
    assert repair_shard(shard).is_intact


def test_a_key_in_two_rows(shard: Path, numbered_sample: Sampler) -> None:
    """The later row is given up; nothing is lost unless the earlier sample is damaged."""
    whole = shard.read_bytes()
    damaged = DamagedShard(shard, numbered_sample)
    damaged.craft(f"{7:032x}", key=f"{2:032x}".encode())
    damaged.write()
    report = repair_shard(shard)
    assert [(fault.kind, fault.key) for fault in report.mended] == [("key-repeated", f"{2:032x}")]
    assert (report.lost, report.left, report.num_samples) == ((), (), 9)
    assert stored(shard)[f"{2:032x}"] == damaged.samples[f"{2:032x}"]

    shard.write_bytes(whole)
    damaged = DamagedShard(shard, numbered_sample)
    wrong_payload(damaged, f"{2:032x}", random.Random(3))
    damaged.craft(f"{7:032x}", key=f"{2:032x}".encode())
    damaged.write()
    report = repair_shard(shard)
    assert (report.mended, report.lost, report.left) == ((), (), ())
    assert stored(shard)[f"{2:032x}"] == damaged.samples[f"{7:032x}"]


def test_an_interrupted_seal_is_finished(shard: Path, crash_at: CrashAt) -> None:
    """A shard whose seal had begun is sealed and cut."""
    with crash_at(1000) as made:
        ShardWriter.open(shard).close()
    with crash_at(len(made) + 2), pytest.raises(KeyboardInterrupt):
        seal(shard)
    report = repair_shard(shard)
    assert [fault.kind for fault in report.mended] == ["seal-unfinished"]
    with h5py.File(shard) as hdf5:
        assert hdf5.attrs["sealed"]
        assert hdf5["index"].shape == (10,)


def test_repair_needs_no_recovery_after_it(shard: Path, numbered_sample: Sampler) -> None:
    """What a crash left is put right as a writer would, and the lost sample is named."""
    damaged = DamagedShard(shard, numbered_sample)
    wrong_payload(damaged, f"{9:032x}", random.Random(3))
    place = int(damaged.start["index"]) + 10 * ROW
    damaged.data[place : place + 3] = b"abc"
    damaged.write()
    report = repair_shard(shard)
    assert [fault.key for fault in report.lost] == [f"{9:032x}"]
    assert [fault.kind for fault in report.mended] == ["row-corrupt"]
    before = shard.read_bytes()
    ShardWriter.open(shard).close()
    assert shard.read_bytes() == before


def test_lost_samples_are_not_stored(shard: Path, numbered_sample: Sampler) -> None:
    """A scanner that knew a sample before, and a new one, do not count it after repair."""
    scanner = RunScanner(shard.parent)
    scanner.refresh()
    key = f"{4:032x}"
    assert scanner.has_durable(key)
    damaged = DamagedShard(shard, numbered_sample)
    wrong_payload(damaged, key, random.Random(5))
    damaged.write()
    assert [fault.key for fault in repair_shard(shard).lost] == [key]
    assert not scanner.has_durable(key)
    new = RunScanner(shard.parent)
    new.refresh()
    assert key not in new.keys
    assert new.num_samples == 9


def test_keys_of_others(shard: Path) -> None:
    """Samples whose keys are no digests of their prompts are reported, but never given up."""
    before = shard.read_bytes()
    faults = verify_shard(shard, has_digest_keys=True).faults
    assert {fault.kind for fault in faults} == {"prompt-differs"}
    report = repair_shard(shard)
    assert (report.mended, report.lost, report.num_samples, report.left) == ((), (), 10, ())
    assert shard.read_bytes() == before


def test_a_full_disk(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for a row repair says so, and goes on when there is some."""
    damaged = DamagedShard(shard, numbered_sample)
    wrong_payload(damaged, f"{3:032x}", random.Random(5))
    damaged.write()

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full_disk:
        full_disk.setattr(os, "pwrite", fail)
        with pytest.raises(StopError, match="no room to repair") as refusal:
            repair_shard(shard)
    assert refusal.value.kind == "disk-full"
    assert [fault.key for fault in repair_shard(shard).lost] == [f"{3:032x}"]


def test_a_bad_spot_of_the_disk(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that the disk does not give back is given up, and only that one."""
    damaged = DamagedShard(shard, numbered_sample)
    place, length = damaged.payload_place(f"{6:032x}", "states")
    real = os.preadv

    def fail(fd: int, buffers: list[memoryview], offset: int) -> int:
        if place <= offset < place + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail)
    report = repair_shard(shard)
    assert [(f.kind, f.key) for f in report.lost] == [("payload-unreadable", f"{6:032x}")]
    assert (report.num_samples, report.left) == (9, ())
    assert set(stored(shard)) == set(damaged.samples) & {f"{n:032x}" for n in range(10)} - {
        f"{6:032x}"
    }


def test_progress_ends_with_everything(shard: Path) -> None:
    """Progress grows from sample to sample to the shard's bytes."""
    seen: list[tuple[int, int]] = []
    repair_shard(shard, on_progress=lambda done, total: seen.append((done, total)))
    num_bytes = sum(1 + number % 13 for number in range(10)) * (48 + 4 + 1)
    assert len(seen) == 10
    assert seen == sorted(set(seen))
    assert seen[-1] == (num_bytes, num_bytes)
