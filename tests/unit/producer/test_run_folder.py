"""A run's paths and its record."""

from pathlib import Path

import pytest
from statetap_contract import StatetapError
from statetap_producer.run_folder import RunFolder

from .test_run_record import RECORD


def test_a_written_record_is_read_back(tmp_path: Path) -> None:
    """A run folder holds its record, and counts as planned from then on."""
    (tmp_path / "demo").mkdir()
    run = RunFolder(tmp_path / "demo")
    was_planned = run.is_planned
    run.write_record(RECORD)
    assert (was_planned, run.is_planned) == (False, True)
    assert run.read_record() == RECORD


@pytest.mark.parametrize("name", ["with space", ".hidden", "a" * 65, "ünlaut", "/"])
def test_a_name_that_cannot_be_a_runs_is_refused(name: str) -> None:
    """The run's name becomes part of paths and messages, so its form is narrow."""
    with pytest.raises(StatetapError, match="cannot be a run's name") as caught:
        RunFolder(Path(name))
    assert (caught.value.kind, caught.value.exit_code) == ("run-name", 2)


def test_the_name_is_that_of_the_real_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called from within, the folder still has its name."""
    (tmp_path / "demo").mkdir()
    monkeypatch.chdir(tmp_path / "demo")
    assert RunFolder(Path()).name == "demo"


def test_a_folder_without_a_plan_says_how_to_make_one(tmp_path: Path) -> None:
    """The sentence holds the command."""
    with pytest.raises(StatetapError, match="statetap plan DATASET --run") as caught:
        RunFolder(tmp_path / "demo").read_record()
    assert (caught.value.kind, caught.value.exit_code) == ("run-missing", 3)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_refused(tmp_path: Path, content: bytes) -> None:
    """Bytes that are no record are a sentence, not a traceback."""
    run = RunFolder(tmp_path / "demo")
    run.path.mkdir()
    run.record_file.write_bytes(content)
    with pytest.raises(StatetapError, match="is not a run record") as caught:
        run.read_record()
    assert (caught.value.kind, caught.value.exit_code) == ("run-unreadable", 2)


def test_a_renamed_run_is_refused(tmp_path: Path) -> None:
    """A run keeps its name for life: its messages and samples carry it."""
    run = RunFolder(tmp_path / "demo")
    run.path.mkdir()
    run.write_record(RECORD)
    run.path.rename(tmp_path / "other")
    with pytest.raises(StatetapError, match="was planned as run 'demo'"):
        RunFolder(tmp_path / "other").read_record()
