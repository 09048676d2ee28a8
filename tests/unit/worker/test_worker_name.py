"""Names of workers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from statetap_contract import MissingError
from statetap_worker import worker_name
from statetap_worker.worker_name import name_taken


def test_a_name_belongs_to_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one is told what to do; another name, and the name afterwards, are free."""
    monkeypatch.setattr(worker_name, "_PREDECESSOR_S", 0.2)
    folder = tmp_path / "runs" / ".workers"
    folder.parent.mkdir()
    with name_taken(folder, "w"):
        with name_taken(folder, "v"):
            pass
        with pytest.raises(MissingError, match="--name") as caught, name_taken(folder, "w"):
            pytest.fail("two have the name")
    assert caught.value.kind == "name-taken"
    with name_taken(folder, "w"):
        pass


def test_the_name_of_a_killed_worker_is_free(tmp_path: Path) -> None:
    """A real kill -9."""
    folder = tmp_path / ".workers"
    script = (
        "import sys, time; from pathlib import Path;"
        "from statetap_worker.worker_name import name_taken\n"
        "with name_taken(Path(sys.argv[1]), 'w'):\n"
        "    print('has it', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        os.kill(process.pid, signal.SIGKILL)
    with name_taken(folder, "w"):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One sentence with the file."""
    (tmp_path / ".workers").write_text("in the way")
    with (
        pytest.raises(MissingError, match=r"w\.name") as caught,
        name_taken(tmp_path / ".workers", "w"),
    ):
        pytest.fail("it has no file")
    assert caught.value.kind == "folder-unwritable"
