"""What a killed process had in hand."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from statetap_contract import StopError
from statetap_worker.failing.in_hand import InHand, Left

from .conftest import JOB


def test_nothing_is_left_by_a_process_that_ended_its_job(tmp_path: Path) -> None:
    """Also by one that failed."""
    path = tmp_path / "notes" / "w-00"
    with InHand(path) as note:
        assert note.left is None
        with note.holding(JOB):
            pass
        with pytest.raises(KeyError), note.holding(JOB):
            raise KeyError
    with InHand(path) as note:
        assert note.left is None


def test_a_note_has_its_room_from_the_beginning(tmp_path: Path) -> None:
    """It is written in place, on a disk that may be full by then."""
    path = tmp_path / "notes" / "w-00"
    with InHand(path) as note:
        taken = path.stat()
        assert taken.st_size == 160
        assert taken.st_blocks > 0
        with note.holding(JOB):
            assert path.stat().st_size == taken.st_size


def test_the_successor_of_a_killed_process_knows_what_it_had(tmp_path: Path) -> None:
    """A real kill -9."""
    path = tmp_path / "notes" / "w-00"
    script = (
        "import sys, time; from pathlib import Path;"
        "from statetap_worker.failing.in_hand import InHand;"
        "from array import array; from statetap_contract import Job, Prompt\n"
        f"job = Job.of({JOB.run!r}, {JOB.spec_digest!r},"
        "Prompt(array('i', [5, 6, 7, 8, 9]), ((2, 5),)), attempt=3)\n"
        "with InHand(Path(sys.argv[1])).holding(job):\n"
        "    print('holding', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holding\n"
        os.kill(process.pid, signal.SIGKILL)
    with InHand(path) as note:
        assert note.left == Left(JOB.run, JOB.key, 3)
        note.clear()
    with InHand(path) as note:
        assert note.left is None


def test_a_longer_note_leaves_nothing_behind(tmp_path: Path) -> None:
    """The shorter one that follows is read alone."""
    path = tmp_path / "notes" / "w-00"
    with InHand(path) as note:
        with note.holding(replace(JOB, run="a" * 64, attempt=10**17)):
            assert path.read_text().split() == ["a" * 64, JOB.key, str(10**17)]
        with note.holding(JOB):
            assert path.read_text().split() == [JOB.run, JOB.key, "1"]


@pytest.mark.parametrize("text", ["", "x" * 500, "run key 1\n", f"../x {JOB.key} 1\n", "\x00" * 80])
def test_a_note_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    """Whatever a power loss left there."""
    path = tmp_path / "notes" / "w-00"
    path.parent.mkdir()
    path.write_text(text)
    with InHand(path) as note:
        assert note.left is None


def test_a_folder_that_cannot_be_made_stops_the_worker(tmp_path: Path) -> None:
    """One sentence that names the file."""
    (tmp_path / "notes").write_text("in the way")
    with pytest.raises(StopError, match="w-00") as caught:
        InHand(tmp_path / "notes" / "w-00")
    assert caught.value.kind == "note-unwritable"
