"""A disk that really fills up."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import CaptureSpec, StopError
from statetap_store import Provenance, ShardSet, ShardWriter, scan_run, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "statetap-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leaves no room on a disk but 16 KiB."""
    ballast = folder / "ballast"
    free = os.statvfs(folder)
    with ballast.open("wb") as file:
        file.write(bytes(free.f_bavail * free.f_bsize - 16 * 1024))
    return ballast


def store_many(shards: ShardSet, numbered_sample: Sampler) -> None:
    for number in range(1, 1000):
        shards.append(*numbered_sample(number, 20))
        shards.commit()


def test_full_disk_stops_the_worker_and_harms_nothing(
    small_disk: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """When the disk fills up, one sentence says so, and all that was committed is intact."""
    with ShardSet(small_disk, "w0", 1 << 20, spec, provenance) as shards:
        shards.append(*numbered_sample(0, 20))
        shards.commit()
        ballast = fill(small_disk)
        with pytest.raises(StopError, match=r"No space left on device.*free some space") as full:
            store_many(shards, numbered_sample)
        assert full.value.kind == "disk-full"
        num_stored = sum(f"{number:032x}" in shards for number in range(1000))
        assert 1 < num_stored < 30
        path = small_disk / "w0-00001.h5"
        assert verify_shard(path).faults == ()
        assert verify_shard(path).num_samples == num_stored
        ballast.unlink()
        assert shards.append(*numbered_sample(num_stored, 20))
        shards.commit()
    assert scan_run(small_disk).num_tokens == 20 * (num_stored + 1)


def test_full_disk_makes_no_half_shard(
    small_disk: Path, spec: CaptureSpec, provenance: Provenance
) -> None:
    """Where a shard does not even fit its header, nothing is left behind."""
    ballast = fill(small_disk)
    with pytest.raises(StopError, match="No space left on device") as full:
        ShardWriter.create(small_disk / "s.h5", spec, provenance, 1 << 20)
    assert full.value.kind == "disk-full"
    assert {path.name for path in small_disk.iterdir()} == {ballast.name, "s.h5.lock"}


def test_too_much_provenance(tmp_path: Path, spec: CaptureSpec, numbered_sample: Sampler) -> None:
    """A header that its copy has no room for is refused, and nothing is left behind."""
    provenance = Provenance("run-1", "w0", "x" * 600_000, "0.5.23", "0.1.0", (2, 4))
    with (
        ShardSet(tmp_path, "w0", 1 << 20, spec, provenance) as shards,
        pytest.raises(ValueError, match="shorten the provenance"),
    ):
        shards.append(*numbered_sample(0))
    assert [path.name for path in tmp_path.iterdir()] == ["w0-00001.h5.lock"]
