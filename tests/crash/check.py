"""What is left after a crash, and whether it is what was acknowledged."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import h5py
import xxhash
from statetap_contract import StatetapError
from statetap_store import ShardReader, verify_shard

from .numbered import sample
from .real_files import read_file

Content = tuple[bytes, bytes, bytes]


@dataclass(slots=True)
class Findings:
    """What is wrong with one state, a sentence each."""

    unreadable: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def all(self) -> list[str]:
        return [*self.unreadable, *self.lost, *self.wrong]


@cache
def expected_content(number: int) -> Content:
    """Ids, mask and states of a sample."""
    _, ids, mask, states = sample(number)
    return ids.tobytes(), mask.tobytes(), states.tobytes()


class Checker:
    """Checks folders of shards. Shards that come again byte for byte are read once."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Findings, list[int]]] = {}

    def check(self, folder: Path, must_have: AbstractSet[int]) -> Findings:
        """Reads every sample in a recovered folder, by h5py and by the store."""
        findings = Findings()
        stored: set[int] = set()
        for path in sorted(folder.glob("*")):
            if path.suffix != ".h5":
                if path.name.startswith(".") and (folder / path.stem[1:]).exists():
                    findings.wrong.append(f"{path.name} was left over")
                continue
            found, numbers = self._check_shard(path)
            findings.unreadable += found.unreadable
            findings.wrong += found.wrong
            for number in numbers:
                if number in stored:
                    findings.wrong.append(f"sample {number} is in {path.name} once more")
                stored.add(number)
        findings.lost = [f"sample {number} is lost" for number in sorted(must_have - stored)]
        return findings

    def _check_shard(self, path: Path) -> tuple[Findings, list[int]]:
        content = read_file(path)
        digest = xxhash.xxh3_128(f"{path.name} {content.length}".encode())
        for number, page in content.pages.items():
            digest.update(number.to_bytes(8))
            digest.update(page)
        known = digest.digest()
        if known not in self._known:
            self._known[known] = check_shard(path)
        return self._known[known]


def check_shard(path: Path) -> tuple[Findings, list[int]]:
    """What is wrong with a shard, and the numbers of the samples in it."""
    try:
        by_h5py = content_by_h5py(path)
        by_store = content_by_store(path)
    except (StatetapError, OSError, KeyError, ValueError) as error:
        return Findings(unreadable=[f"{path.name}: {error!r}"]), []
    wrong = [f"{fault.kind}: {fault.message}" for fault in verify_shard(path).faults]
    if by_h5py != by_store:
        wrong.append(f"{path.name} has other samples for h5py than for the store")
    wrong += [
        f"sample {number} in {path.name} is wrong"
        for number, content in by_store
        if content != expected_content(number)
    ]
    return Findings(wrong=wrong), [number for number, _ in by_store]


def content_by_h5py(path: Path) -> list[tuple[int, Content]]:
    """Number and content of every sample, as somebody without statetap reads them."""
    with h5py.File(path, "r") as hdf5:
        arrays = [hdf5[name][...] for name in ("input_ids", "loss_mask", "states")]
        found = []
        for row in hdf5["index"][...]:
            if row["state"] == 1:
                start, stop = int(row["token_offset"]), int(row["token_offset"] + row["num_tokens"])
                ids, mask, states = (array[start:stop].tobytes() for array in arrays)
                found.append((int(row["key"], 16), (ids, mask, states)))
        return found


def content_by_store(path: Path) -> list[tuple[int, Content]]:
    """Number and content of every sample; what that should be is known, so no checksum is."""
    with ShardReader(path) as reader:
        found = []
        for entry in reader.samples:
            read = reader.read(entry, check=False)
            content = (read.token_ids.tobytes(), read.loss_mask.tobytes(), read.states.tobytes())
            found.append((int(entry.key, 16), content))
        return found
