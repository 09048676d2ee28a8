"""At most one process may write to a shard, and nobody is in the way of finding out."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import StopError
from statetap_store import ShardWriter, repair_shard, seal, verify_shard
from statetap_store.shard_lock import ShardLock, is_locked


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second lock is refused until the first one is closed."""
    path = tmp_path / "a.h5"
    assert not is_locked(path)
    lock = ShardLock(path)
    assert is_locked(path)
    with pytest.raises(StopError) as refusal:
        ShardLock(path)
    assert refusal.value.kind == "shard-locked"
    lock.close()
    assert not is_locked(path)
    ShardLock(path).close()


def test_a_discarded_lock_leaves_no_file(tmp_path: Path) -> None:
    """The file goes, and with it the lock."""
    path = tmp_path / "a.h5"
    ShardLock(path).discard()
    assert list(tmp_path.iterdir()) == []
    ShardLock(path).close()


def test_a_lock_that_is_discarded_while_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever opened the old file takes the lock of the new one: there are never two holders."""
    path = tmp_path / "a.h5"
    real = os.open
    removed: list[Path] = []

    def open_and_remove(name: Any, *arguments: Any, **others: Any) -> int:
        fd = real(name, *arguments, **others)
        if not removed:
            removed.append(Path(name))
            Path(name).unlink()
        return fd

    monkeypatch.setattr(os, "open", open_and_remove)
    lock = ShardLock(path)
    assert len(removed) == 1
    with pytest.raises(StopError):
        ShardLock(path)
    lock.close()


def test_finding_out_keeps_no_writer_away(tmp_path: Path) -> None:
    """A writer that starts while somebody looks whether there is one is not refused."""
    path = tmp_path / "a.h5"
    ShardLock(path).close()
    looking = os.open(path.with_name("a.h5.lock"), os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.01, os.close, [looking])
    timer.start()
    ShardLock(path).close()
    timer.join()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_no_way_around_it(
    shard: Path, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    """A shard that is being written to is not opened, sealed or repaired by another name."""
    mix = tmp_path / "mix"
    mix.mkdir()
    link(shard, mix / "other.h5")
    with ShardWriter.open(shard):
        for call in (ShardWriter.open, seal, repair_shard):
            with pytest.raises(StopError) as refusal:
                call(mix / "other.h5")
            assert refusal.value.kind == "shard-locked"
    seal(mix / "other.h5")
    assert verify_shard(shard).is_intact


def test_a_file_system_without_locks(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is appended there, and the error says what is missing."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(StopError, match=r"cannot be locked \(Function not implemented\)") as error:
        ShardWriter.open(shard)
    assert error.value.kind == "no-locks"
    assert not is_locked(shard)
    assert verify_shard(shard).is_intact
