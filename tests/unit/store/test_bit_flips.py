"""One wrong bit, anywhere in a shard where bits matter: found, and nobody else blamed for it."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import CheckError
from statetap_store import ShardReader, ShardWriter, seal, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]

MIB = 1024 * 1024
ROW = 128

#: Two shards, sealed and unsealed, have this many flips each.
NUM_FLIPS = 500
SEED = 2024


@dataclass(frozen=True)
class Place:
    """Bytes of a shard, and what verification says of a wrong bit among them."""

    name: str
    offset: int
    num_bytes: int
    kind: str
    #: The sample that loses something.
    key: str | None = None


@pytest.fixture(params=[False, True], ids=["unsealed", "sealed"])
def any_shard(
    request: pytest.FixtureRequest, shard: Path, numbered_sample: Sampler
) -> tuple[Path, bool]:
    """A shard with samples 0 to 9 and whether it is sealed; a void row stands before the last."""
    with h5py.File(shard) as hdf5:
        position = hdf5["loss_mask"].id.get_offset() + int(hdf5["index"][9]["token_offset"])
    with flipped(shard, position, 7):
        ShardWriter.open(shard).close()
    with ShardWriter.open(shard) as writer:
        assert writer.append(*numbered_sample(9))
    if request.param:
        seal(shard)
    return shard, request.param


def flip(path: Path, position: int, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes([os.pread(fd, 1, position)[0] ^ 1 << bit]), position)
    os.close(fd)


@contextmanager
def flipped(path: Path, position: int, bit: int) -> Iterator[None]:
    flip(path, position, bit)
    yield
    flip(path, position, bit)


def header_places(path: Path, *, is_sealed: bool) -> Iterator[Place]:
    """The header and its copies: length, checksum and header in each slot."""
    with path.open("rb") as file:
        file.seek(MIB)
        header_bytes = int.from_bytes(file.read(8), "little")
    yield Place("header", 0, header_bytes, "header-damaged")
    if is_sealed:
        for slot in (0, 1):
            start = MIB + slot * MIB // 2
            yield Place(f"slot {slot}", start, 16 + header_bytes, "backup-damaged")
    else:
        yield Place("slot 0", MIB, 16 + header_bytes, "header-unproven")
        yield Place("empty slot 1", MIB + MIB // 2, 16, "backup-damaged")


def places(path: Path, *, is_sealed: bool) -> list[Place]:
    """Every place where bits matter, as plain h5py sees them."""
    found = list(header_places(path, is_sealed=is_sealed))
    with h5py.File(path) as hdf5:
        rows = hdf5["index"][...]
        start = {name: hdf5[name].id.get_offset() for name in hdf5}
    for number, row in enumerate(rows):
        place = start["index"] + ROW * number
        if row["state"] != 1:
            name = "void row" if row["state"] else "unused row"
            found.append(Place(name, place, ROW, "row-corrupt"))
            continue
        key, token, num_tokens = row["key"].decode(), int(row["token_offset"]), row["num_tokens"]
        found.append(Place("row", place, ROW, "row-corrupt", key))
        for dataset, token_bytes in (("input_ids", 4), ("loss_mask", 1), ("states", 48)):
            place = start[dataset] + token_bytes * token
            num_bytes = token_bytes * int(num_tokens)
            found.append(Place(dataset, place, num_bytes, "payload-corrupt", key))
    return found


def readable(path: Path) -> dict[str, bytes]:
    """The samples that can be read: key to ids, mask and states."""
    found = {}
    with ShardReader(path) as reader:
        for entry in reader.samples:
            try:
                sample = reader.read(entry)
            except CheckError as error:
                assert entry.key in error.message  # noqa: PT017 the others must still be read
                continue
            parts = (sample.token_ids, sample.loss_mask, sample.states)
            found[entry.key] = b"".join(part.tobytes() for part in parts)
    return found


def test_every_wrong_bit_is_found(any_shard: tuple[Path, bool], numbered_sample: Sampler) -> None:
    """Each flip is the one fault, with its sample's key; all other samples are read, and right."""
    path, is_sealed = any_shard
    samples = {
        key: b"".join(part.tobytes() for part in parts)
        for key, *parts in map(numbered_sample, range(10))
    }
    generator = random.Random(SEED)
    by_name: dict[str, list[Place]] = {}
    for place in places(path, is_sealed=is_sealed):
        by_name.setdefault(place.name, []).append(place)
    for number in range(NUM_FLIPS):
        place = generator.choice(by_name[generator.choice(list(by_name))])
        position = place.offset + generator.randrange(place.num_bytes)
        bit = generator.randrange(8)
        case = f"seed {SEED}, flip {number}: bit {bit} of byte {position}, {place.name}"
        with flipped(path, position, bit):
            faults = [(fault.kind, fault.key) for fault in verify_shard(path).faults]
            assert faults == [(place.kind, place.key)], case
            intact = {key: data for key, data in samples.items() if key != place.key}
            assert readable(path) == intact, case
    assert verify_shard(path).faults == (), "the shard was put back"
    assert readable(path) == samples
