"""Who is at a sample, among processes."""

import errno
import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from statetap_contract import StopError
from statetap_worker.failing.key_locks import KeyLocks

KEY = "ab" * 16
#: Differs in one of the digits that count, the last of them.
OTHER = KEY[:14] + "c" + KEY[15:]

HOLDER = """
import sys
from pathlib import Path
from statetap_worker.failing.key_locks import KeyLocks
locks = KeyLocks(Path(sys.argv[1]))
with locks.held(sys.argv[2]):
    print("held", flush=True)
    sys.stdin.readline()
print("left", flush=True)
sys.stdin.readline()
"""


class Holder:
    """Another process, which takes a key until it is told to leave it."""

    def __init__(self, path: Path, key: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), key],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._is_in = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def is_in(self, timeout_s: float = 30) -> bool:
        return self._is_in.wait(timeout_s)

    def leave(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() == "held\n":
            self._is_in.set()


@contextmanager
def another(path: Path, key: str) -> Iterator[Holder]:
    holder = Holder(path, key)
    try:
        yield holder
    finally:
        holder.close()


def test_one_waits_until_the_other_has_left(tmp_path: Path) -> None:
    """Also where that one lives on."""
    path = tmp_path / "folder" / "keys.lock"
    with another(path, KEY) as first:
        assert first.is_in()
        with another(path, KEY) as second:
            assert not second.is_in(1)
            first.leave()
            assert second.is_in()


def test_a_killed_one_has_left(tmp_path: Path) -> None:
    """The kernel sees to it."""
    path = tmp_path / "keys.lock"
    with another(path, KEY) as first, another(path, KEY) as second:
        assert first.is_in() or second.is_in()
        holder, waiting = (first, second) if first.is_in(0) else (second, first)
        assert not waiting.is_in(1)
        holder.kill()
        assert waiting.is_in()


def test_other_keys_are_not_waited_for(tmp_path: Path) -> None:
    """Nor the largest and the smallest one, and nothing is written."""
    path = tmp_path / "keys.lock"
    locks = KeyLocks(path)
    with another(path, KEY) as other:
        assert other.is_in()
        for key in (OTHER, "0" * 32, "f" * 32):
            with locks.held(key):
                assert path.stat().st_size == 0
    locks.close()


def test_a_wait_that_is_interrupted_holds_nothing(tmp_path: Path) -> None:
    """A worker that is told to stop gives its prompt back to others."""

    class Stopped(BaseException):
        pass

    def stop(_number: int, _frame: object) -> None:
        raise Stopped

    path = tmp_path / "keys.lock"
    locks = KeyLocks(path)
    before = signal.signal(signal.SIGUSR2, stop)
    try:
        with another(path, KEY) as first:
            assert first.is_in()
            me = threading.main_thread().ident
            assert me is not None
            threading.Timer(0.3, signal.pthread_kill, [me, signal.SIGUSR2]).start()
            with pytest.raises(Stopped), locks.held(KEY):
                pass
            first.leave()
            with another(path, KEY) as second:
                assert second.is_in()
    finally:
        signal.signal(signal.SIGUSR2, before)
        locks.close()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """Before a prompt is begun."""
    path = tmp_path / "keys.lock"
    path.mkdir()
    with pytest.raises(StopError, match=f"cannot write {path}: Is a directory") as caught:
        KeyLocks(path)
    assert caught.value.kind == "note-unwritable"


def test_a_file_system_without_locks_stops_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without them a sample could be stored twice."""

    def refuse(_fd: int, _how: int, _length: int, _start: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    locks = KeyLocks(tmp_path / "keys.lock")
    monkeypatch.setattr(fcntl, "lockf", refuse)
    refused = pytest.raises(StopError, match=r"No locks available.*keep runs on")
    with refused as caught, locks.held(KEY):
        raise AssertionError
    assert caught.value.kind == "no-locks"
    monkeypatch.undo()
    locks.close()
