"""Failed tries, counted on disk."""

import shutil
from pathlib import Path

from statetap_worker.failing.tries import TriedBefore, Tries


def test_tries_of_all_processes_count_together(tmp_path: Path) -> None:
    """By sample and attempt, in the order of the files; a rerun counts from 0 again."""
    first = Tries(tmp_path, "w-00", "http://s")
    second = Tries(tmp_path, "w-01", "http://s")
    assert first.of("a" * 32, 1) == TriedBefore()
    assert not (tmp_path / "tries").exists()
    first.add("a" * 32, 1, "dump-cut")
    second.add("a" * 32, 1, "server-lost")
    second.add("b" * 32, 1, "worker-lost")
    assert first.of("a" * 32, 1) == TriedBefore(2, ("server-lost",))
    assert second.of("b" * 32, 1) == TriedBefore(1, ("worker-lost",))
    assert first.of("a" * 32, 2) == TriedBefore()


def test_tries_outlive_their_process(tmp_path: Path) -> None:
    """A cut line of a killed one is passed over."""
    Tries(tmp_path, "w-00", "http://s").add("a" * 32, 1, "dump-cut")
    with (tmp_path / "tries" / "w-00.jsonl").open("a") as stream:
        stream.write('{"key": ')
    again = Tries(tmp_path, "w-00", "http://s")
    again.add("a" * 32, 1, "dump-cut")
    assert again.of("a" * 32, 1) == TriedBefore(2)


def test_a_run_that_is_made_anew_counts_from_0(tmp_path: Path) -> None:
    """With what is noted in it, and nothing of the one before."""
    tries = Tries(tmp_path, "w-00", "http://s")
    tries.add("a" * 32, 1, "server-lost")
    assert tries.of("a" * 32, 1) == TriedBefore(1, ("server-lost",))
    shutil.rmtree(tmp_path / "tries")
    assert tries.of("a" * 32, 1) == TriedBefore()
    for number in range(3):
        tries.add("b" * 32, 1, "server-lost")
        assert tries.of("b" * 32, 1) == TriedBefore(number + 1, ("server-lost",) * (number + 1))
    shutil.rmtree(tmp_path / "tries")
    tries.add("a" * 32, 1, "dump-cut")
    assert tries.of("a" * 32, 1) == TriedBefore(1)
    assert tries.of("b" * 32, 1) == TriedBefore()
