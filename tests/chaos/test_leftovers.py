"""Processes that are left over are found, and what they have on shared memory."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator

import psutil
import pytest

from .leftovers import MARK, Census, new_mark

#: Maps a file, says so, and stays.
STAY = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 1)
print("ready", flush=True)
time.sleep(60)
"""

#: Starts a process that stays, and ends without it.
ABANDON = """
import subprocess, sys
process = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid)
"""


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    return mark


@pytest.fixture
def shared_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile(prefix="statetap-test-", dir="/dev/shm") as file:
        file.write(b"x")
        file.flush()
        yield file.name


def test_an_orphan_is_found_with_what_it_mapped(mark: str, shared_file: str) -> None:
    """By the mark that it inherited from a parent that has ended."""
    census = Census(mark)
    assert census.remaining(timeout_s=0) == []
    command = [sys.executable, "-c", ABANDON, STAY, shared_file]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    orphan = psutil.Process(int(ended.stdout))
    try:
        [line] = census.remaining(timeout_s=0)
        assert line.startswith(f"pid {orphan.pid} ")
        assert Census(new_mark()).remaining(timeout_s=0) == []
        assert census.shared_memory == {shared_file}
    finally:
        orphan.kill()
    assert census.remaining(timeout_s=30) == []


def test_a_process_without_the_mark_is_known_by_its_parent(mark: str, shared_file: str) -> None:
    """And is still known when that has ended."""
    census = Census(mark)
    unmarked = f"env --unset={MARK} {sys.executable} -c '{STAY}' {shared_file}; true"
    with subprocess.Popen(["sh", "-c", unmarked], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        [child] = psutil.Process(parent.pid).children()
        try:
            assert len(census.remaining(timeout_s=0)) == 2
            parent.kill()
            parent.wait()
            [line] = census.remaining(timeout_s=0)
            assert line.startswith(f"pid {child.pid} ")
        finally:
            child.kill()
    assert census.remaining(timeout_s=30) == []
