"""Power losses, played through: any of the pages written since the last sync may be missing."""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import StopError
from statetap_store import ShardReader, ShardWriter, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]

PAGE = 4096


class Disk:
    """Follows what one process does to one file, and knows what a power loss can leave of it.

    A page may be on the disk in any version it had since the last sync. Versions are kept per
    page, the durable one first.
    """

    def __init__(self, path: Path) -> None:
        self._versions = {number: [page] for number, page in enumerate(pages_of(path)) if any(page)}
        self._length = path.stat().st_size

    def write(self, data: bytes, offset: int) -> None:
        for number in range(offset // PAGE, (offset + len(data) - 1) // PAGE + 1):
            versions = self._versions.setdefault(number, [bytes(PAGE)])
            page = bytearray(versions[-1])
            start = max(0, offset - number * PAGE)
            piece = data[max(0, number * PAGE - offset) :][: PAGE - start]
            page[start : start + len(piece)] = piece
            versions.append(bytes(page))

    def sync(self) -> None:
        for versions in self._versions.values():
            del versions[:-1]

    def truncate(self, length: int) -> None:
        """Only ever follows a sync; taken as durable, which is the harder case."""
        self._length = length

    def leave(self, path: Path, generator: random.Random, chance: float) -> None:
        """Writes a file as a power loss now may leave it."""
        with path.open("wb") as file:
            for number, versions in self._versions.items():
                is_new = len(versions) > 1 and generator.random() < chance
                file.seek(number * PAGE)
                file.write(generator.choice(versions[1:]) if is_new else versions[0])
            file.truncate(self._length)


def pages_of(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    for start in range(0, len(data), PAGE):
        yield data[start : start + PAGE].ljust(PAGE, b"\0")


@pytest.mark.parametrize("seed", [1])
def test_power_loss_at_any_call(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Whatever of the unsynced pages is lost, all that was committed is there, and nothing false.

    Samples are committed one by one and in batches, then the shard is sealed. The power fails
    before every call that changes the file.
    """
    generator = random.Random(seed)
    disk = Disk(shard)
    committed = set(range(10))
    left: list[tuple[Path, set[int]]] = []

    def power_loss() -> None:
        path = shard.with_name(f"left-{len(left)}.h5")
        disk.leave(path, generator, generator.choice([0.1, 0.5, 0.9]))
        left.append((path, set(committed)))

    with monkeypatch.context() as patch:
        real = {name: getattr(os, name) for name in ("pwrite", "fsync", "fdatasync", "ftruncate")}

        def pwrite(fd: int, data: bytes, offset: int) -> int:
            power_loss()
            disk.write(bytes(data), offset)
            return int(real["pwrite"](fd, data, offset))

        def sync(fd: int) -> None:
            power_loss()
            disk.sync()
            real["fdatasync"](fd)

        def ftruncate(fd: int, length: int) -> None:
            power_loss()
            disk.truncate(length)
            real["ftruncate"](fd, length)

        for name, function in (("pwrite", pwrite), ("fsync", sync), ("fdatasync", sync)):
            patch.setattr(os, name, function)
        patch.setattr(os, "ftruncate", ftruncate)
        writer = ShardWriter.open(shard)
        for batch in ((10,), (11,), range(12, 16), range(16, 40)):
            for number in batch:
                writer.append(*numbered_sample(number))
            writer.commit()
            committed.update(batch)
        writer.seal()
        power_loss()

    assert len(left) > 100
    for path, must_have in left:
        keys = keys_after_recovery(path, numbered_sample)
        assert keys >= must_have
        path.unlink()


def keys_after_recovery(path: Path, numbered_sample: Sampler) -> set[int]:
    """Opens a shard for writing as a worker would; proves it and all its samples."""
    try:
        with ShardWriter.open(path) as writer:
            writer.append(*numbered_sample(1000))
    except StopError as error:
        if error.kind != "shard-sealed":
            raise
    assert verify_shard(path).faults == ()
    with ShardReader(path) as reader:
        for entry in reader.samples:
            states = reader.read(entry).states
            assert states.tobytes() == numbered_sample(int(entry.key, 16))[3].tobytes()
        return {int(entry.key, 16) for entry in reader.samples}
