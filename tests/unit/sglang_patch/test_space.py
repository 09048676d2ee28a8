"""Room for dumps: reserved, taken over, given back, swept, expired."""

import errno
import os
import time
from pathlib import Path
from typing import NoReturn

import pytest
from statetap_contract import dump_name
from statetap_patch.housekeeping import start_housekeeping
from statetap_patch.space import expire, give_back, keep, reserve, sweep, take_over

KEY = "0123456789abcdef" * 2


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_reservation_takes_the_space_at_once(tmp_path: Path) -> None:
    """Not a hole: the blocks are there before a row is."""
    reserve(tmp_path, "a1", 1 << 20)
    stat = (tmp_path / ".a1.reserved").stat()
    assert (stat.st_size, stat.st_blocks * 512 >= 1 << 20) == (1 << 20, True)


def test_a_reservation_belongs_to_one_owner(tmp_path: Path) -> None:
    """Whoever takes it over owns it; giving back then does nothing."""
    reserve(tmp_path, "a1", 10)
    path = take_over(tmp_path, "a1")
    give_back(tmp_path, "a1")
    assert names(tmp_path) == [path.name] == [".a1.unfinished"]
    with pytest.raises(FileNotFoundError):
        take_over(tmp_path, "a1")


def test_a_reservation_that_nobody_takes_is_given_back(tmp_path: Path) -> None:
    """And a writer that comes too late finds nothing."""
    reserve(tmp_path, "a1", 10)
    give_back(tmp_path, "a1")
    assert names(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        take_over(tmp_path, "a1")


def test_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-made reservation would keep the room that the next one needs."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        reserve(tmp_path, "a1", 10)
    assert names(tmp_path) == []


def test_sweep_removes_only_what_was_left_unfinished(tmp_path: Path) -> None:
    """A server that starts clears what a dead one left, and keeps published dumps."""
    dump = tmp_path / f"{KEY}.safetensors"
    for file in (dump, tmp_path / ".dead.unfinished", tmp_path / ".queued.reserved"):
        file.write_bytes(b"rows")
    (tmp_path / ".lock").touch()
    assert sweep(tmp_path) == 2
    assert names(tmp_path) == [".lock", dump.name]


def test_only_old_dumps_expire(tmp_path: Path) -> None:
    """What is young, was renewed, or is still being made stays."""
    long_ago = time.time() - 1000
    old, young, renewed = (tmp_path / dump_name(digit * 32) for digit in "123")
    for dump in (old, young, renewed):
        dump.touch()
    reserve(tmp_path, "slow", 10)
    for file in (old, renewed, tmp_path / ".slow.reserved"):
        os.utime(file, (long_ago, long_ago))
    keep(renewed)
    assert expire(tmp_path, keep_s=500) == 1
    assert names(tmp_path) == [".slow.reserved", young.name, renewed.name]


def test_nothing_but_dumps_expires(tmp_path: Path) -> None:
    """Whoever keeps weights in the dump folder keeps them; what cannot go hinders no other."""
    weights, folder = tmp_path / "model.safetensors", tmp_path / dump_name("1" * 32)
    weights.touch()
    folder.mkdir()
    dump = tmp_path / dump_name("2" * 32)
    dump.touch()
    for path in (weights, folder, dump):
        os.utime(path, (1, 1))
    assert expire(tmp_path, keep_s=500) == 1
    assert names(tmp_path) == sorted([weights.name, folder.name])


def test_housekeeping_runs_by_itself(tmp_path: Path) -> None:
    """A dump that nobody fetches is gone once its time is over."""
    dump = tmp_path / f"{KEY}.safetensors"
    dump.touch()
    start_housekeeping(tmp_path, keep_s=1)
    for _ in range(600):
        if not dump.exists():
            break
        time.sleep(0.05)
    assert names(tmp_path) == []


def test_links_are_left_to_themselves(tmp_path: Path) -> None:
    """Neither the age of what they lead to counts, nor is it changed."""
    folder, target = tmp_path / "dumps", tmp_path / "target"
    folder.mkdir()
    target.touch()
    os.utime(target, (0, 0))
    dumps = [folder / dump_name(key) for key in (KEY, KEY[::-1])]
    for dump, aim in zip(dumps, (target, tmp_path / "nowhere"), strict=True):
        dump.symlink_to(aim)
    keep(dumps[0])
    assert target.stat().st_mtime == 0
    assert expire(folder, 60) == 0
    for dump in dumps:
        os.utime(dump, (0, 0), follow_symlinks=False)
    assert expire(folder, 60) == 2
    assert target.exists()
