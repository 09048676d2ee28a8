"""What a folder of shards holds, while it grows."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, RunScanner, SampleTable, ShardSet, ShardWriter, seal
from statetap_store.run_scanner import ShardTally

Sampler = Callable[..., tuple[str, Any, Any, Any]]

TOKEN_BYTES = 48 + 4 + 1


@pytest.fixture
def folder(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> Path:
    """Shards a (0 to 4), b (3 to 7) and c (7, 8, 0), so that 0, 3, 4 and 7 are there twice."""
    for name, numbers in (("b", range(3, 8)), ("a", range(5)), ("c", (7, 8, 0))):
        with ShardWriter.create(tmp_path / f"{name}.h5", spec, provenance, 10000) as writer:
            for number in numbers:
                writer.append(*numbered_sample(number))
                writer.commit()
    return tmp_path


@pytest.mark.parametrize("missing", [True, False])
def test_nothing_to_scan(tmp_path: Path, *, missing: bool) -> None:
    """No folder yet, or one without shards, holds nothing."""
    folder = tmp_path / "shards"
    if not missing:
        folder.mkdir()
        (folder / "w0-00001.h5.lock").touch()
        (folder / ".w0-00001.h5.new").touch()
    scanner = RunScanner(folder)
    scanner.refresh()
    assert (scanner.num_samples, scanner.unreadable) == (0, {})


def test_scanner_agrees_with_the_table(folder: Path) -> None:
    """Counting and listing a folder come to the same."""
    scanner, table = RunScanner(folder), SampleTable.scan(folder)
    num_tokens = sum(1 + number % 13 for number in range(9))
    for _ in range(2):
        scanner.refresh()
        assert scanner.keys == {entry.key for entry in table}
        assert (scanner.num_samples, scanner.num_duplicates) == (9, 4)
        assert (scanner.num_tokens, scanner.num_bytes) == (num_tokens, num_tokens * TOKEN_BYTES)
    assert (len(table), table.num_duplicates, table.num_tokens.sum()) == (9, 4, num_tokens)


def test_scanner_follows_a_growing_folder(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """After each commit, roll-over and seal the count is right at the next refresh."""
    folder = tmp_path / "shards"
    scanner = RunScanner(folder)
    num_tokens = 0
    with ShardSet(folder, "w0", 300 * TOKEN_BYTES, spec, provenance) as shards:
        for number in range(120):
            shards.append(*numbered_sample(number))
            num_tokens += 1 + number % 13
            if number % 3 == 2:
                shards.commit()
            scanner.refresh()
            assert (scanner.num_samples, scanner.num_tokens) == (number + 1, num_tokens)
    assert len(list(folder.glob("*.h5"))) == 3
    assert scanner.num_bytes == num_tokens * TOKEN_BYTES


def test_refresh_reads_only_what_is_new(
    tmp_path: Path,
    spec: CaptureSpec,
    provenance: Provenance,
    numbered_sample: Sampler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refreshing costs the rows since the last commit, however many there are before."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 1 << 20) as writer:
        for number in range(300):
            writer.append(*numbered_sample(number))
            writer.commit()
        scanner = RunScanner(tmp_path)
        scanner.refresh()
        writer.append(*numbered_sample(300))
        writer.commit()
        num_read = 0
        real = os.preadv

        def count(fd: int, buffers: list[memoryview], offset: int) -> int:
            nonlocal num_read
            num_read += (result := real(fd, buffers, offset))
            return result

        monkeypatch.setattr(os, "preadv", count)
        scanner.refresh()
    assert scanner.num_samples == 301
    assert num_read <= 8192


def test_scanner_forgets_what_recovery_gave_up(shard: Path, numbered_sample: Sampler) -> None:
    """A sample that was seen and then dropped by recovery counts no more."""
    scanner = RunScanner(shard.parent)
    scanner.refresh()
    assert f"{9:032x}" in scanner.keys
    with h5py.File(shard) as hdf5:
        position = hdf5["states"].id.get_offset() + 48 * int(hdf5["index"][9]["token_offset"])
    with shard.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")
    with ShardWriter.open(shard) as writer:
        scanner.refresh()
        assert f"{9:032x}" not in scanner.keys
        writer.append(*numbered_sample(11))
        writer.commit()
    scanner.refresh()
    assert scanner.keys == {f"{number:032x}" for number in (*range(9), 11)}
    assert scanner.num_tokens == sum(1 + number % 13 for number in (*range(9), 11))


def test_scanner_goes_on_without_an_unreadable_shard(folder: Path) -> None:
    """A shard that cannot be read is named, and the others count; once whole, it counts too."""
    broken = folder / "d.h5"
    broken.write_bytes(b"nothing")
    scanner = RunScanner(folder)
    scanner.refresh()
    assert list(scanner.unreadable) == [broken]
    assert "is not an HDF5 file" in scanner.unreadable[broken].message
    assert scanner.num_samples == 9
    broken.unlink()
    scanner.refresh()
    assert (scanner.unreadable, scanner.num_samples) == ({}, 9)


def test_scanner_notices_removed_and_replaced_shards(folder: Path) -> None:
    """Removing a shard takes its samples out; a shard of the same name is read anew."""
    scanner = RunScanner(folder)
    scanner.refresh()
    (folder / "b.h5").unlink()
    scanner.refresh()
    assert scanner.keys == {f"{number:032x}" for number in (0, 1, 2, 3, 4, 7, 8)}
    seal(folder / "a.h5")
    (folder / "a.h5").rename(folder / "c.h5")
    scanner.refresh()
    assert scanner.keys == {f"{number:032x}" for number in range(5)}
    assert scanner.num_duplicates == 0


def test_shard_that_cannot_be_read_any_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples count no more, those of the others do; and again when the disk is well."""
    scanner = RunScanner(folder)
    scanner.refresh()
    real = os.open

    def failing(path: Any, *arguments: Any, **others: Any) -> int:
        if Path(path) == folder / "a.h5":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path, *arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        for _ in range(2):
            scanner.refresh()
            assert list(scanner.unreadable) == [folder / "a.h5"]
            assert scanner.keys == {f"{number:032x}" for number in (*range(3, 9), 0)}
    scanner.refresh()
    assert (scanner.unreadable, scanner.num_samples) == ({}, 9)


def test_last_sample_of_a_dead_writer_is_proven(shard: Path, numbered_sample: Sampler) -> None:
    """What a crash left half-written is not stored; what a live writer has written counts."""
    with h5py.File(shard) as hdf5:
        position = hdf5["states"].id.get_offset() + 48 * int(hdf5["index"][9]["token_offset"])
    with shard.open("r+b") as file:
        file.seek(position)
        file.write(b"\xff")
    scanner = RunScanner(shard.parent)
    scanner.refresh()
    assert scanner.keys == {f"{number:032x}" for number in range(9)}
    assert SampleTable.scan(shard).num_tokens.sum() == scanner.num_tokens
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
        scanner.refresh()
        assert f"{10:032x}" in scanner.keys


def test_seal_that_cuts_nothing_is_noticed(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """A shard made for one large sample keeps its length; its sample is durable once sealed."""
    with ShardSet(tmp_path / "shards", "w0", 100, spec, provenance) as shards:
        shards.append(*numbered_sample(1, 40))
        shards.commit()
        [path] = (tmp_path / "shards").glob("*.h5")
        length = path.stat().st_size
        scanner = RunScanner(tmp_path / "shards")
        scanner.refresh()
        assert not scanner.has_durable(f"{1:032x}")
        shards.seal()
    assert path.stat().st_size == length
    scanner.refresh()
    assert scanner.has_durable(f"{1:032x}")


def test_finished_shards_cost_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has not changed is not listed again, and no sealed shard is opened."""
    for name in ("a", "b", "c"):
        seal(folder / f"{name}.h5")
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    scanner = RunScanner(folder)
    scanner.refresh()
    done: list[str] = []
    for name in ("open", "scandir", "listdir", "stat"):
        real = getattr(os, name)

        def call(*arguments: Any, name: str = name, real: Any = real, **others: Any) -> Any:
            done.append(f"{name} {arguments[0]}")
            return real(*arguments, **others)

        monkeypatch.setattr(os, name, call)
    scanner.refresh()
    assert done == [f"stat {folder}"]
    monkeypatch.undo()
    assert scanner.num_samples == 9
    (folder / "a.h5").rename(folder / "d.h5")
    scanner.refresh()
    assert scanner.num_samples == 9
    assert scanner.has_durable(f"{1:032x}")


def test_tallies_are_those_of_the_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's samples, tokens and times, as plain h5py reads them; sealed or growing."""
    scanner = RunScanner(folder)
    scanner.refresh()
    tallies = scanner.tallies()
    assert sorted(path.name for path in tallies) == ["a.h5", "b.h5", "c.h5"]
    for path, tally in tallies.items():
        with h5py.File(path) as shard:
            rows = [row for row in shard["index"] if row["state"] == 1]
        assert tally == ShardTally(
            host="gpu-1",
            num_samples=len(rows),
            num_tokens=sum(int(row["num_tokens"]) for row in rows),
            num_recent_tokens=tally.num_tokens,
            first_ns=int(rows[0]["time_ns"]),
            last_ns=int(rows[-1]["time_ns"]),
        )
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 60_000_000_000)
    assert {tally.num_recent_tokens for tally in scanner.tallies().values()} == {0}


def test_tallies_grow_with_the_shards(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """A sample counts once, as a late one and as a durable one; the first stays the first."""
    scanner = RunScanner(tmp_path)
    begun_ns: list[int] = []
    with ShardSet(tmp_path, "w0", 4000, spec, provenance) as shards:
        for number in range(30):
            shards.append(*numbered_sample(number))
            shards.commit()
            scanner.refresh()
            tallies = scanner.tallies().values()
            assert sum(tally.num_samples for tally in tallies) == number + 1
            assert sum(tally.num_tokens for tally in tallies) == scanner.num_tokens
            assert sum(tally.num_recent_tokens for tally in tallies) == scanner.num_tokens
            begun_ns.append(min(tally.first_ns for tally in tallies))
    assert len(scanner.tallies()) > 1
    assert len(set(begun_ns)) == 1


def test_an_empty_shard_has_no_times(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance
) -> None:
    """Made, and nothing appended yet."""
    ShardWriter.create(tmp_path / "a.h5", spec, provenance, 10000).close()
    scanner = RunScanner(tmp_path)
    scanner.refresh()
    assert list(scanner.tallies().values()) == [ShardTally("gpu-1", 0, 0, 0, 0, 0)]
