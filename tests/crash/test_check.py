"""The checks that every state has to pass, on folders with known faults."""

from pathlib import Path

import pytest
from statetap_store import ShardWriter

from .check import Checker
from .numbered import PROVENANCE, SHARD_BYTES, SPEC, sample


def store(path: Path, samples: dict[int, int]) -> None:
    """A sealed shard: under each number the content of another, or the same, number."""
    with ShardWriter.create(path, SPEC, PROVENANCE, SHARD_BYTES) as writer:
        for number, content in samples.items():
            writer.append(sample(number)[0], *sample(content)[1:])
        writer.seal()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds the samples 0, 1 and 2."""
    store(tmp_path / "w0-00001.h5", {0: 0, 1: 1, 2: 2})
    return tmp_path


def test_nothing_is_found_where_nothing_is_wrong(folder: Path) -> None:
    """More samples than were acknowledged are no fault."""
    assert Checker().check(folder, {0, 2}).all() == []


def test_a_lost_sample(folder: Path) -> None:
    """Acknowledged and not there."""
    assert Checker().check(folder, {1, 2, 3}).lost == ["sample 3 is lost"]


def test_a_wrong_sample(folder: Path) -> None:
    """Its checksums are right, and it is not what was delivered."""
    store(folder / "w0-00002.h5", {3: 4})
    assert Checker().check(folder, {3}).all() == ["sample 3 in w0-00002.h5 is wrong"]


def test_a_sample_that_is_there_twice(folder: Path) -> None:
    """In two shards, where it counts once."""
    store(folder / "w0-00002.h5", {2: 2, 3: 3})
    findings = Checker().check(folder, {0, 1, 2, 3})
    assert findings.all() == ["sample 2 is in w0-00002.h5 once more"]


def test_what_verification_finds(folder: Path) -> None:
    """A changed byte that no sample owns: the header's second copy."""
    with (folder / "w0-00001.h5").open("r+b") as file:
        file.seek((1 << 20) + 16)
        file.write(b"?")
    [wrong] = Checker().check(folder, {0}).all()
    assert wrong.startswith("backup-damaged: ")


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    """Then its samples are lost, too; a file that changed is read again."""
    checker = Checker()
    checker.check(folder, {0})
    with (folder / "w0-00001.h5").open("r+b") as file:
        file.truncate(1000)
    findings = checker.check(folder, {0})
    assert len(findings.unreadable) == 1
    assert findings.lost == ["sample 0 is lost"]


def test_a_leftover(folder: Path) -> None:
    """A shard's temporary name has to go when the shard is opened; one without a shard may stay."""
    (folder / ".w0-00001.h5.new").touch()
    (folder / ".w0-00002.h5.new").touch()
    (folder / "w0-00001.h5.lock").touch()
    assert Checker().check(folder, {0}).all() == [".w0-00001.h5.new was left over"]
