"""A disk that fails, cannot be written to, or belongs to someone else."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import (
    CaptureSpec,
    CheckError,
    MissingError,
    StatetapError,
    StopError,
)
from statetap_store import (
    Provenance,
    RunScanner,
    ShardReader,
    ShardSet,
    ShardWriter,
    seal,
    verify_shard,
)

from .conftest import num_open_in

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Opener = Callable[[str], ShardSet]

#: Ten tokens to a shard.
SHARD_BYTES = 10 * (48 + 4 + 1)

#: All that the store asks of the system in order to write. Reading is among it: recovery reads.
CALLS_OF_WRITERS = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "link",
    "listdir",
    "lseek",
    "mkdir",
    "open",
    "posix_fallocate",
    "preadv",
    "pwrite",
    "unlink",
)
CALLS_OF_READERS = ("lseek", "open", "preadv")

#: What leaves in doubt what is on the disk: these calls, while this is done.
DOUBTFUL_CALLS = {"fdatasync", "fsync", "ftruncate", "pwrite"}
DOUBTFUL_TASKS = "failed to (write sample|sync|seal the shard)"


@dataclass
class BadDisk:
    """Fails at one call of a sequence."""

    #: Which call fails, from 0.
    bad_call: int
    #: Names of the calls made, the one that failed last.
    made: list[str] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return len(self.made) > self.bad_call


@contextmanager
def bad_disk(
    names: tuple[str, ...], bad_call: int, *, is_lasting: bool = False
) -> Iterator[BadDisk]:
    """Lets a call fail with EIO, and those after it if that is lasting; syncs take no time."""
    disk = BadDisk(bad_call)
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            real = getattr(os, name)

            def call(*arguments: Any, name: str = name, real: Any = real, **options: Any) -> Any:
                if not disk.has_failed:
                    disk.made.append(name)
                elif not is_lasting:
                    return real(*arguments, **options)
                if disk.has_failed:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return None if name in {"fsync", "fdatasync"} else real(*arguments, **options)

            patch.setattr(os, name, call)
        yield disk


def check_sentence(message: str, folder: Path) -> None:
    """One sentence that names the place and the trouble."""
    assert "\n" not in message
    assert str(folder) in message
    # Of a new shard there is one copy of the header. If just that cannot be read, repair may be
    # able to make it again.
    assert "Input/output error" in message or "no intact copy of its header: run" in message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shards"


@pytest.fixture
def open_set(folder: Path, spec: CaptureSpec, provenance: Provenance) -> Opener:
    """Opens a worker's shards of ten tokens."""
    return lambda name: ShardSet(folder, name, SHARD_BYTES, spec, provenance)


@dataclass
class Script:
    """A worker's life: it starts, stores, is stopped, goes on beside another one, and seals.

    Every step may be done again.
    """

    open_set: Opener
    numbered_sample: Sampler
    #: Numbers of the samples whose commit returned.
    acknowledged: set[int] = field(default_factory=set)
    #: What is open now.
    shards: ShardSet | None = None

    def run(self) -> None:
        for name, numbers in (("w0", (0,)), ("w1", (1,)), ("w0", (2, 3))):
            self.shards = self.open_set(name)
            # The last one rolls over.
            self.store(*numbers)
            if len(numbers) > 1:
                self.shards.seal()
            self.close()

    def store(self, *numbers: int) -> None:
        """One batch, as a worker does it."""
        assert self.shards is not None
        for number in numbers:
            if f"{number:032x}" not in self.shards:
                self.shards.append(*self.numbered_sample(number, 4))
        self.shards.commit()
        self.acknowledged.update(numbers)

    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()
            self.shards = None


def test_bad_disk_at_every_call(folder: Path, open_set: Opener, numbered_sample: Sampler) -> None:
    """Whichever call fails: a sentence, no more use in doubt, nothing lost, and it goes on."""
    kinds, failed = set(), set()
    for bad_call in range(2000):
        script = Script(open_set, numbered_sample)
        with bad_disk(CALLS_OF_WRITERS, bad_call) as disk:
            try:
                script.run()
            except StatetapError as error:
                check_sentence(error.message, folder)
                kinds.add(error.kind)
                if disk.made[-1] in DOUBTFUL_CALLS and re.search(DOUBTFUL_TASKS, error.message):
                    assert script.shards is not None
                    with pytest.raises(StopError, match="open it again"):
                        script.shards.commit()
                    with pytest.raises(StopError, match="open it again"):
                        script.shards.seal()
            script.close()
        if not disk.has_failed:
            break
        failed.add(disk.made[-1])
        assert readable(folder) >= script.acknowledged
        with bad_disk(CALLS_OF_WRITERS, sys.maxsize):
            with open_set("w0") as shards:
                assert all(f"{number:032x}" in shards for number in script.acknowledged)
            script.run()
        assert num_open_in(folder) == 0
        check_stored(folder, numbered_sample, set(range(4)))
        shutil.rmtree(folder)
    assert not disk.has_failed
    assert failed == set(CALLS_OF_WRITERS)
    assert kinds == {
        "folder-unreachable",
        "header-unproven",
        "shard-broken",
        "shard-unreachable",
        "shard-unreadable",
    }


def readable(folder: Path) -> set[int]:
    """Numbers of the samples that can be read before anybody recovers anything."""
    found = set()
    for path in folder.glob("*.h5"):
        with ShardReader(path) as reader:
            for entry in reader.samples:
                with suppress(CheckError):
                    found.add(int(reader.read(entry).key, 16))
    return found


def check_stored(folder: Path, numbered_sample: Sampler, numbers: set[int]) -> None:
    """Every sample once, by plain h5py, every shard proven, and nothing else in the folder."""
    shards = sorted(folder.glob("*.h5"))
    assert {path.name for path in folder.iterdir()} == {
        name for path in shards for name in (path.name, path.name + ".lock")
    }
    found: list[int] = []
    for path in shards:
        assert verify_shard(path).faults == ()
        with h5py.File(path) as hdf5:
            for row in hdf5["index"]:
                if row["state"] == 1:
                    number = int(row["key"], 16)
                    start = int(row["token_offset"])
                    states = hdf5["states"][start : start + int(row["num_tokens"])]
                    assert np.array_equal(states, numbered_sample(number, 4)[3])
                    found.append(number)
    assert sorted(found) == sorted(numbers)


Troubles = list[tuple[str, str]]


def fail_at_every_call(
    path: Path, read: Callable[[Path], Troubles], *, is_lasting: bool
) -> set[str]:
    """Reads a shard on a disk that fails at one call, or from there on, each in turn.

    Args:
        path: the shard.
        read: returns kind and sentence of all that went wrong.
        is_lasting: whether the disk stays bad.

    Returns:
        The kinds met.
    """
    kinds = set()
    for bad_call in range(1000):
        with bad_disk(CALLS_OF_READERS, bad_call, is_lasting=is_lasting) as disk:
            troubles = read(path)
        if not disk.has_failed:
            break
        assert num_open_in(path.parent) == 0
        # What is read a second time may be right then.
        assert troubles or not is_lasting
        assert len(troubles) <= 1 or is_lasting
        for kind, message in troubles:
            check_sentence(message, path)
            kinds.add(kind)
    assert not disk.has_failed
    assert bad_call > 5
    return kinds


def verify(path: Path) -> Troubles:
    """Faults of a shard but damaged rows."""
    try:
        faults = verify_shard(path).faults
    except MissingError as error:
        return [(error.kind, error.message)]
    return [(fault.kind, fault.message) for fault in faults if fault.kind != "row-corrupt"]


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_bad_disk_while_verifying(shard: Path, *, is_damaged: bool, is_lasting: bool) -> None:
    """Whichever call fails, verification says what it cannot read, also of a damaged row."""
    if is_damaged:
        with h5py.File(shard) as hdf5:
            position = hdf5["index"].id.get_offset() + 4 * 128 + 20
        with shard.open("r+b") as file:
            file.seek(position)
            file.write(b"\xff\xff")
    kinds = fail_at_every_call(shard, verify, is_lasting=is_lasting)
    expected = {"shard-unreachable", "payload-unreadable"}
    # A shard that looks intact, at the second look at the latest, is not looked at again.
    if is_damaged or is_lasting:
        expected.add("shard-unreadable")
    # One call costs the header or a copy at most.
    if is_damaged and not is_lasting:
        expected |= {"header-damaged", "header-unproven", "backup-damaged"}
    assert kinds == expected


@pytest.mark.parametrize("is_lasting", [False, True])
def test_bad_disk_while_reading(shard: Path, numbered_sample: Sampler, *, is_lasting: bool) -> None:
    """Whichever call fails, it costs a sample at most; what is read is right."""

    def read(path: Path) -> Troubles:
        troubles = []
        try:
            reader = ShardReader(path)
        except (CheckError, MissingError) as error:
            return [(error.kind, error.message)]
        with reader:
            for entry in reader.samples:
                try:
                    sample = reader.read(entry)
                except CheckError as error:
                    troubles.append((error.kind, error.message))
                else:
                    states = numbered_sample(int(entry.key, 16))[3]
                    assert np.array_equal(sample.states, states)
        return troubles

    kinds = fail_at_every_call(shard, read, is_lasting=is_lasting)
    assert kinds == {"shard-unreachable", "shard-unreadable", "payload-corrupt"}


@pytest.mark.parametrize("is_lasting", [False, True])
def test_bad_disk_while_counting(shard: Path, *, is_lasting: bool) -> None:
    """Whichever call fails, the shard that cannot be counted is named."""

    def count(path: Path) -> Troubles:
        scanner = RunScanner(path.parent)
        scanner.refresh()
        return [(error.kind, error.message) for error in scanner.unreadable.values()]

    kinds = fail_at_every_call(shard, count, is_lasting=is_lasting)
    assert kinds == {"shard-unreachable", "shard-unreadable"}


def test_read_only_disk(
    small_disk: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> None:
    """What is stored on a read-only disk is read and verified; whoever would write is told."""
    folder = small_disk / "shards"
    with ShardSet(folder, "w0", SHARD_BYTES, spec, provenance) as shards:
        for number in range(3):
            shards.append(*numbered_sample(number, 4))
        shards.commit()
    sealed, path = sorted(folder.glob("*.h5"))
    options = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(options, check=True)
    try:
        with ShardReader(path) as reader:
            (entry,) = reader.samples
            assert np.array_equal(reader.read(entry).states, numbered_sample(2, 4)[3])
        assert verify_shard(path).faults == verify_shard(sealed).faults == ()
        for write in (
            lambda: ShardWriter.open(path),
            lambda: seal(path),
            lambda: ShardWriter.create(folder / "new.h5", spec, provenance, 4096),
            lambda: ShardSet(folder, "w0", SHARD_BYTES, spec, provenance),
            lambda: ShardSet(small_disk / "other", "w0", SHARD_BYTES, spec, provenance),
        ):
            with pytest.raises(StopError, match=r"not allowed .*Read-only file system") as error:
                write()
            assert error.value.kind == "not-writable"
        with ShardSet(folder, "w1", SHARD_BYTES, spec, provenance) as shards:
            assert f"{0:032x}" in shards
            with pytest.raises(StopError, match=r"not allowed .*Read-only file system"):
                shards.append(*numbered_sample(3, 4))
        assert len(list(folder.iterdir())) == 4
    finally:
        options = ["mount", "-o", "remount,rw", str(small_disk)]
        subprocess.run(options, check=True)
    with ShardSet(folder, "w0", SHARD_BYTES, spec, provenance) as shards:
        assert shards.append(*numbered_sample(3, 4))


#: Tries everything on a shard and its folder, and prints a line for each.
EVERYTHING = """
import runpy, sys
from pathlib import Path
from statetap_contract import StatetapError
from statetap_store import ShardReader, ShardSet, ShardWriter, seal, verify_shard
path, script = Path(sys.argv[1]), runpy.run_path(sys.argv[2])

def store(folder):
    with ShardSet(folder, "w1", 1000, script["SPEC"], script["PROVENANCE"]) as shards:
        if script["numbered_sample"](0)[0] not in shards:
            raise SystemExit("a stored sample is not known")
        shards.append(*script["numbered_sample"](11))

for call, place in (
    (ShardReader, path),
    (verify_shard, path),
    (ShardWriter.open, path),
    (seal, path),
    (store, path.parent),
):
    try:
        opened = call(place)
        if isinstance(opened, (ShardReader, ShardWriter)):
            opened.close()
        print("done")
    except StatetapError as error:
        print(error.kind, error.message)
"""


def without_rights(*command: object) -> subprocess.CompletedProcess[str]:
    """Runs a command for which files' permissions count, as they do not for root."""
    drop: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root is bound by no permissions, and there is no setpriv to change that")
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    return subprocess.run(
        [*drop, *map(str, command)], capture_output=True, text=True, timeout=60, check=False
    )


DONE = "done"
NO_READING = "shard-unreachable cannot open {shard} (Permission denied): check the path and its"
NO_LOCK = "not-writable not allowed to make a lock in {shard}.lock (Permission denied): make"
NO_NEW_LOCK = "not-writable not allowed to make a lock in {folder}/w1-00001.h5.lock (Permission"
NO_ENTRY = "folder-unreachable cannot look into {folder} (Permission denied): check its"
# Whoever may not read a folder cannot make the names in it durable.
NO_SYNC = "not-writable not allowed to recover samples in {shard} (Permission denied): make"
NO_LIST = "folder-unreachable cannot list {folder} (Permission denied): check its permissions"


@pytest.mark.parametrize(
    ("place", "mode", "reader", "verify", "writer", "sealing", "worker"),
    [
        ("shard", 0o000, NO_READING, NO_READING, NO_READING, NO_READING, NO_READING),
        ("shard", 0o444, DONE, DONE, NO_READING, NO_READING, DONE),
        ("lock", 0o444, DONE, DONE, NO_LOCK, NO_LOCK, DONE),
        ("folder", 0o555, DONE, DONE, NO_LOCK, NO_LOCK, NO_NEW_LOCK),
        ("folder", 0o666, NO_READING, NO_READING, NO_READING, NO_READING, NO_ENTRY),
        ("folder", 0o333, DONE, DONE, NO_SYNC, NO_SYNC, NO_LIST),
    ],
    ids=["no rights", "read-only shard", "lost lock", "read-only folder", "no entry", "no listing"],
)
def test_missing_permissions(
    shard: Path,
    place: str,
    mode: int,
    reader: str,
    verify: str,
    writer: str,
    sealing: str,
    worker: str,
) -> None:
    """Whoever may not do what it needs is told so; what is stored is never taken for missing."""
    lock = shard.with_name(shard.name + ".lock")
    if place == "folder":
        lock.unlink()
    target = {"shard": shard, "lock": lock, "folder": shard.parent}[place]
    before = target.stat().st_mode
    target.chmod(mode)
    try:
        script = Path(__file__).with_name("endless_writer.py")
        result = without_rights(sys.executable, "-c", EVERYTHING, shard, script)
    finally:
        target.chmod(before)
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert len(lines) == 5
    expected = (reader, verify, writer, sealing, worker)
    for line, beginning in zip(lines, expected, strict=True):
        assert line.startswith(beginning.format(shard=shard, folder=shard.parent)), lines


def test_commands_without_permission(shard: Path) -> None:
    """The commands say the same in one line, with the code for what is not there."""
    statetap = Path(sys.executable).with_name("statetap")
    shard.chmod(0)
    for command in ("verify", "seal"):
        result = without_rights(statetap, command, shard)
        assert (result.returncode, result.stdout) == (3, "")
        assert result.stderr == (
            f"statetap: cannot open {shard} (Permission denied): check the path and its "
            "permissions\n"
        )
