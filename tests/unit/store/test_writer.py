"""Appending to one shard."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pytest
import xxhash
from statetap_contract import CaptureSpec, CheckError, StopError
from statetap_store import Provenance, ShardFull, ShardReader, ShardWriter, seal, verify_shard

Sampler = Callable[..., tuple[str, Any, Any, Any]]

SECOND_WRITER = """
import sys
from pathlib import Path
from statetap_contract import StopError
from statetap_store import ShardWriter
try:
    ShardWriter.open(Path(sys.argv[1]))
except StopError as error:
    print(error.kind, error.message)
"""


def keys_in(path: Path) -> list[str]:
    """Keys of the sample rows, by plain h5py."""
    with h5py.File(path) as hdf5:
        return [row["key"].decode() for row in hdf5["index"] if row["state"] == 1]


def append_and_commit(writer: ShardWriter, *sample: Any) -> None:
    writer.append(*sample)
    writer.commit()


def fail_with(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_appended_samples_are_read_back(shard: Path, numbered_sample: Sampler) -> None:
    """Samples come back in order, each with its own ids, mask and states."""
    with ShardReader(shard) as reader:
        assert [entry.key for entry in reader.samples] == [f"{n:032x}" for n in range(10)]
        for number, entry in enumerate(reader.samples):
            sample = reader.read(entry)
            _, ids, mask, states = numbered_sample(number)
            assert np.array_equal(sample.token_ids, ids)
            assert np.array_equal(sample.loss_mask, mask)
            assert np.array_equal(sample.states, states)


def test_reopening_continues(shard: Path, numbered_sample: Sampler) -> None:
    """A shard that is opened again has its samples and takes more behind them."""
    with ShardWriter.open(shard) as writer:
        assert (writer.num_samples, writer.num_tokens) == (10, sum(1 + n % 13 for n in range(10)))
        assert writer.append(*numbered_sample(10))
    assert keys_in(shard) == [f"{n:032x}" for n in range(11)]
    assert verify_shard(shard).faults == ()


class DisprovenError(Exception):
    """A proof failed."""


def disprove() -> NoReturn:
    raise DisprovenError


def test_a_sample_that_fails_its_proof_was_never_there(
    shard: Path, numbered_sample: Sampler
) -> None:
    """Neither to this writer nor to a reader; another one follows in its place."""
    with ShardWriter.open(shard) as writer:
        with pytest.raises(DisprovenError):
            writer.append(*numbered_sample(10), proof=disprove)
        writer.commit()
        assert (writer.num_samples, keys_in(shard)) == (10, [f"{n:032x}" for n in range(10)])
        assert numbered_sample(10)[0] not in writer.keys
        assert writer.append(*numbered_sample(11), proof=lambda: None)
        # It may be right the next time.
        assert writer.append(*numbered_sample(10))
    assert keys_in(shard)[10:] == [f"{11:032x}", f"{10:032x}"]
    assert verify_shard(shard).faults == ()


def test_a_proof_sees_the_states_written_and_no_row(shard: Path, numbered_sample: Sampler) -> None:
    """So that the disk is at work meanwhile, and a crash leaves no sample behind."""
    sample = numbered_sample(10)
    seen = []

    def look() -> None:
        seen.append((sample[3].tobytes() in shard.read_bytes(), keys_in(shard)))

    with ShardWriter.open(shard) as writer:
        writer.append(*sample, proof=look)
    assert seen == [(True, [f"{n:032x}" for n in range(10)])]


def test_what_failed_its_proof_is_gone_after_a_crash(shard: Path, numbered_sample: Sampler) -> None:
    """A writer that was killed right then leaves nothing that recovery would take up."""
    writer = ShardWriter.open(shard)
    with pytest.raises(DisprovenError):
        writer.append(*numbered_sample(10), proof=disprove)
    copy = shard.with_name("copy.h5")
    copy.write_bytes(shard.read_bytes())
    writer.close()
    with ShardWriter.open(copy) as recovered:
        assert recovered.num_samples == 10
    assert verify_shard(copy).faults == ()


def test_known_key_changes_nothing(shard: Path, numbered_sample: Sampler) -> None:
    """Appending a key twice is a no-op, whether it is committed, pending or read from disk."""
    with ShardWriter.open(shard) as writer:
        assert not writer.append(*numbered_sample(3))
        assert writer.append(*numbered_sample(10))
        assert not writer.append(*numbered_sample(10))
        writer.commit()
        before = shard.read_bytes()
        assert not writer.append(*numbered_sample(10))
        writer.commit()
        assert shard.read_bytes() == before


def test_only_committed_samples_count(shard: Path, numbered_sample: Sampler) -> None:
    """What could be acknowledged is what commit returned for, nothing earlier."""
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
        assert f"{10:032x}" not in writer.keys
        assert writer.num_samples == 10
        writer.commit()
        assert f"{10:032x}" in writer.keys
        assert writer.num_samples == 11


def test_one_sync_commits_several_samples(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit costs one fdatasync, however many samples it covers, and none without any."""
    with ShardWriter.open(shard) as writer:
        syncs: list[int] = []
        real = os.fdatasync

        def record(fd: int) -> None:
            syncs.append(fd)
            real(fd)

        monkeypatch.setattr(os, "fdatasync", record)
        for number in range(10, 15):
            writer.append(*numbered_sample(number))
        writer.commit()
        writer.commit()
        assert len(syncs) == 1


def test_given_checksum_is_kept(shard: Path, numbered_sample: Sampler) -> None:
    """A checksum from the server is stored as it is, and exposes bytes that changed on the way."""
    key, ids, mask, states = numbered_sample(10)
    checksum = xxhash.xxh3_64_intdigest(states.tobytes())
    changed = states.copy()
    changed[0, 0] ^= 1
    with ShardWriter.open(shard) as writer:
        writer.append(key, ids, mask, changed, checksum)
        writer.commit()
        writer.append(*numbered_sample(11), 0)
        writer.commit()
    with ShardReader(shard) as reader:
        assert reader.samples[10].states_xxh3 == checksum
        for entry in reader.samples[10:]:
            with pytest.raises(CheckError, match="fail their checksum"):
                reader.read(entry)


def test_second_process_is_refused(shard: Path) -> None:
    """Another process cannot open the shard for writing, is told which one, and harms nothing."""
    with ShardWriter.open(shard):
        before = shard.read_bytes()
        command = [sys.executable, "-c", SECOND_WRITER, str(shard)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        assert result.stdout.startswith("shard-locked ")
        assert str(shard) in result.stdout
        assert shard.read_bytes() == before
    ShardWriter.open(shard).close()


def test_hdf5_writers_are_kept_out(shard: Path) -> None:
    """While a writer has the shard, HDF5 opens it for reading and not for writing."""
    with ShardWriter.open(shard):
        h5py.File(shard, "r").close()
        for mode in ("r+", "a"):
            with pytest.raises(OSError, match="lock"):
                h5py.File(shard, mode)


def test_open_in_hdf5_is_refused(shard: Path) -> None:
    """A shard that someone has open for writing through HDF5 is refused with a sentence."""
    with h5py.File(shard, "r+"), pytest.raises(StopError, match="open for writing") as refusal:
        ShardWriter.open(shard)
    assert refusal.value.kind == "shard-locked"


def test_existing_shard_is_never_replaced(
    shard: Path, spec: CaptureSpec, provenance: Provenance
) -> None:
    """Creating over an existing file is refused, leaves it alone and no other file behind."""
    before = shard.read_bytes()
    with pytest.raises(StopError, match="exists already") as refusal:
        ShardWriter.create(shard, spec, provenance, 4096)
    assert refusal.value.kind == "shard-exists"
    assert shard.read_bytes() == before
    assert {path.name for path in shard.parent.iterdir()} == {shard.name, shard.name + ".lock"}


def test_leftover_temporary_name(
    shard: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """A crash right after the link leaves two names of one file; the second is only removed."""
    leftover = shard.with_name(f".{shard.name}.new")
    os.link(shard, leftover)
    before = shard.read_bytes()
    with pytest.raises(StopError, match="exists already"):
        ShardWriter.create(shard, spec, provenance, 4096)
    assert shard.read_bytes() == before
    os.link(shard, leftover)
    with ShardWriter.open(shard) as writer:
        assert writer.append(*numbered_sample(10))
    assert not leftover.exists()


def test_sealed_shard_is_refused(shard: Path) -> None:
    """A sealed shard takes no more samples."""
    seal(shard)
    with pytest.raises(StopError, match="sealed") as refusal:
        ShardWriter.open(shard)
    assert refusal.value.kind == "shard-sealed"


def test_full_shard_is_unchanged(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """A sample without room raises ShardFull, and a smaller one still fits."""
    path = tmp_path / "s.h5"
    with ShardWriter.create(path, spec, provenance, 10 * (spec.row_bytes + 5)) as writer:
        writer.append(*numbered_sample(0, 8))
        before = path.read_bytes()
        with pytest.raises(ShardFull):
            writer.append(*numbered_sample(1, 3))
        assert path.read_bytes() == before
        assert writer.append(*numbered_sample(1, 2))
        with pytest.raises(ShardFull):
            writer.append(*numbered_sample(2, 1))
    assert verify_shard(path).num_tokens == 10


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"key": "Z" * 32}, "hex digits"),
        ({"token_ids": np.zeros(0, np.int32)}, r"not int32 \[n\]"),
        ({"token_ids": np.arange(4)}, "not int32"),
        ({"token_ids": np.zeros((2, 2), np.int32)}, "not int32"),
        ({"token_ids": np.arange(8, dtype=np.int32)[::2]}, "not contiguous"),
        ({"loss_mask": np.ones(3, np.uint8)}, "loss mask"),
        ({"loss_mask": np.full(4, 2, np.uint8)}, "holds 2"),
        ({"loss_mask": np.ones(4, bool)}, "loss mask"),
        ({"states": np.ones((4, 23), np.uint16)}, "states are"),
        ({"states": np.ones((4, 24), np.float16)}, "states are"),
        ({"states": np.ones(4 * 48 - 1, np.uint8)}, "192 bytes"),
        ({"states": np.ones((4, 48), np.uint16)[:, ::2]}, "not contiguous"),
    ],
)
def test_unfit_arrays_are_refused(
    shard: Path, numbered_sample: Sampler, change: dict[str, Any], complaint: str
) -> None:
    """Arrays of another form are refused before anything is written."""
    names = ("key", "token_ids", "loss_mask", "states")
    arguments = dict(zip(names, numbered_sample(10, 4), strict=True)) | change
    with ShardWriter.open(shard) as writer:
        before = shard.read_bytes()
        with pytest.raises(ValueError, match=complaint):
            writer.append(**arguments)
        assert shard.read_bytes() == before


def test_full_disk_shows_before_anything_is_written(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for a sample the shard stays as it is, and goes on when there is room."""
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(10))
        before = shard.read_bytes()
        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
            with pytest.raises(StopError, match="No space left on device") as refusal:
                writer.append(*numbered_sample(11))
        assert refusal.value.kind == "disk-full"
        assert shard.read_bytes() == before
        assert writer.append(*numbered_sample(12))
    assert keys_in(shard)[10:] == [f"{n:032x}" for n in (10, 12)]
    assert verify_shard(shard).faults == ()


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
def test_failed_write_stops_the_writer(
    shard: Path,
    numbered_sample: Sampler,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    number: int,
) -> None:
    """Where a quota or a file's limit ends in the midst of it, the shard has to be reopened."""
    writer = ShardWriter.open(shard)
    with monkeypatch.context() as bad_disk:
        bad_disk.setattr(os, call, fail_with(number))
        with pytest.raises(StopError) as failure:
            append_and_commit(writer, *numbered_sample(10))
    assert failure.value.kind == "disk-full"
    assert f"{10:032x}" not in writer.keys
    for task in (lambda: writer.append(*numbered_sample(11)), writer.commit, writer.seal):
        with pytest.raises(StopError, match="open it again") as refusal:
            task()
        assert refusal.value.kind == "shard-broken"
    writer.close()
    with ShardWriter.open(shard) as reopened:
        assert reopened.keys >= {f"{n:032x}" for n in range(10)}
        reopened.append(*numbered_sample(10))
        reopened.append(*numbered_sample(11))
    assert sorted(keys_in(shard)) == [f"{n:032x}" for n in range(12)]
    assert verify_shard(shard).faults == ()


def test_interrupted_append_stops_the_writer(
    shard: Path, numbered_sample: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception from a signal handler in the midst of a write is as bad as a failed write."""
    writer = ShardWriter.open(shard)

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as signalled:
        signalled.setattr(os, "pwrite", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(*numbered_sample(10))
    with pytest.raises(StopError, match="open it again"):
        writer.append(*numbered_sample(10))
    writer.close()
    assert keys_in(shard) == [f"{n:032x}" for n in range(10)]


def test_closing_lets_go(shard: Path, numbered_sample: Sampler) -> None:
    """Closing commits, frees the locks, may be repeated, and ends all use."""
    writer = ShardWriter.open(shard)
    writer.append(*numbered_sample(10))
    writer.close()
    writer.close()
    with pytest.raises(StopError, match="its writer was closed"):
        writer.append(*numbered_sample(11))
    with shard.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(keys_in(shard)) == 11
