"""Who is at a server at the same time."""

import threading
import time
from pathlib import Path

from statetap_worker.failing.company import Company


class Guest(threading.Thread):
    """Joins on a thread of its own, with files of its own, as another process would."""

    def __init__(self, path: Path, *, is_alone: bool) -> None:
        super().__init__(daemon=True)
        self._company = Company(path)
        self._is_alone = is_alone
        self.is_in = threading.Event()
        self.may_go = threading.Event()

    def run(self) -> None:
        with self._company.joined(is_alone=self._is_alone):
            self.is_in.set()
            self.may_go.wait(30)
        self._company.close()

    def leave(self) -> None:
        self.may_go.set()
        self.join(30)
        assert not self.is_alive()


def came(path: Path, *, is_alone: bool = False) -> Guest:
    guest = Guest(path, is_alone=is_alone)
    guest.start()
    return guest


def test_all_are_there_together(tmp_path: Path) -> None:
    """Nobody waits while nobody is suspected."""
    guests = [came(tmp_path / "c" / "server") for _ in range(4)]
    assert all(guest.is_in.wait(30) for guest in guests)
    for guest in guests:
        guest.leave()


def test_a_suspect_is_alone(tmp_path: Path) -> None:
    """It waits for those who are there, and keeps out those who come, so that it gets its turn."""
    path = tmp_path / "c" / "server"
    first = came(path)
    assert first.is_in.wait(30)
    suspect = came(path, is_alone=True)
    assert not suspect.is_in.wait(0.2)
    late = came(path)
    assert not late.is_in.wait(0.2)
    first.leave()
    assert suspect.is_in.wait(30)
    assert not late.is_in.wait(0.2)
    suspect.leave()
    assert late.is_in.wait(30)
    late.leave()


def test_servers_have_nothing_to_do_with_one_another(tmp_path: Path) -> None:
    """A suspect of one keeps nobody from another."""
    suspect = came(tmp_path / "c" / "one", is_alone=True)
    other = came(tmp_path / "c" / "two")
    assert suspect.is_in.wait(30)
    assert other.is_in.wait(30)
    suspect.leave()
    other.leave()


def test_suspects_come_one_by_one(tmp_path: Path) -> None:
    """Two are never there at once."""
    path = tmp_path / "c" / "server"
    suspects = [came(path, is_alone=True) for _ in range(3)]
    waiting = set(suspects)
    for _ in suspects:
        until = time.monotonic() + 30
        while not (inside := [guest for guest in waiting if guest.is_in.is_set()]):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert len(inside) == 1
        waiting.remove(inside[0])
        inside[0].leave()
