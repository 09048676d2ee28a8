"""A run's paths and its record."""

from pathlib import Path

import pytest
from statetap_contract import StatetapError
from statetap_producer.run.run_folder import RunFolder, run_of_shard, shards_at

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


def test_shards_at_paths(tmp_path: Path) -> None:
    """A run, the folder in it, a copy, a shard: each file once, by name, whatever was named."""
    run = RunFolder(tmp_path / "demo")
    run.shards.mkdir(parents=True)
    run.write_record(RECORD)
    shards = [run.shards / "a.h5", run.shards / "b.h5"]
    for shard in shards:
        shard.touch()
    # What was merged into the run's folder is no shard of the run.
    (run.path / "all.h5").touch()
    assert shards_at(run.path) == shards_at(run.shards) == shards
    assert shards_at(shards[1], run.shards, run.path, shards[0], run.path) == shards
    assert shards_at(tmp_path / "no.h5") == [tmp_path / "no.h5"]
    run.record_file.unlink()
    assert shards_at(run.path) == shards, "the folder of a run whose record is lost"


def test_a_run_before_its_first_shard(tmp_path: Path) -> None:
    """It has none, whatever else lies in its folder."""
    run = RunFolder(tmp_path / "demo")
    run.path.mkdir()
    run.write_record(RECORD)
    (run.path / "all.h5").touch()
    assert shards_at(run.path) == []


def test_a_folder_that_is_neither(tmp_path: Path) -> None:
    """A folder without shards and without a run's record is a mistake, named before anything."""
    (tmp_path / "demo" / "shards").mkdir(parents=True)
    with pytest.raises(StatetapError, match=r"holds no run\.json") as caught:
        shards_at(tmp_path / "no.h5", tmp_path / "demo")
    assert caught.value.kind == "run-missing"
    (tmp_path / "demo" / "run.json").write_text("{")
    (tmp_path / "demo" / "shards" / "a.h5").touch()
    with pytest.raises(StatetapError, match="is not a run record"):
        shards_at(tmp_path / "demo")


def test_the_run_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known from the folder above the shard's, also from a name without folders."""
    run = RunFolder(tmp_path / "demo")
    run.shards.mkdir(parents=True)
    assert run_of_shard(run.shards / "a.h5") is None
    run.write_record(RECORD)
    monkeypatch.chdir(run.shards)
    assert run_of_shard(run.shards / "a.h5") == run_of_shard(Path("a.h5")) == run.path
    assert run_of_shard(run.path / "all.h5") is None
