"""The command: what it writes, what it refuses, how it ends."""

import json
from pathlib import Path

import pytest
from statetap_producer.reporting.dataset_card import CARD_MARK
from statetap_producer.reporting.write_report import PAGE_MARK
from statetap_producer.run.run_folder import RunFolder

from .conftest import Invoke, prompts_of
from .report_runs import planned_run, prompt, put


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two prompts, one of them stored."""
    run = planned_run(tmp_path / "told", (prompt(n, 10 + n) for n in range(2)))
    put(run, prompts_of(run)[0])
    return run


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_page_and_card_lie_side_by_side(statetap: Invoke, run: RunFolder) -> None:
    """In the run's own folder too, which stays a run that can be verified; again replaces them."""
    before = names_in(run.path)
    out = run.path / "report.html"
    for _ in range(2):
        result = statetap("report", "--run", run.path, "--out", out)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith(f"{out}, ")
        assert "tells of 1 stored sample" in result.stdout
        assert names_in(run.path) - before == {"report.html", "README.md"}
    assert PAGE_MARK in out.read_text()
    assert CARD_MARK in (run.path / "README.md").read_text()
    assert "1 planned prompt is neither" in statetap("verify", run.path).stdout


def test_json_has_the_same_facts(statetap: Invoke, run: RunFolder, tmp_path: Path) -> None:
    """One document on stdout, and the files as well."""
    out = tmp_path / "report.html"
    result = statetap("report", "--run", run.path, "--out", out, "--json", "--seed", "5")
    facts = json.loads(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert facts["numbers"]["stored"] == 1
    assert facts["holdings"]["num_tokens"] == 10
    assert facts["record"] == json.loads(run.record_file.read_text())
    assert facts["norms"]["seed"] == 5
    assert facts["norms"]["slots"][0]["quantiles"] == [5] * 7
    assert out.is_file()


def test_files_of_others_are_left_alone(statetap: Invoke, run: RunFolder, tmp_path: Path) -> None:
    """A README.md or a page that was not made here is named, and nothing is written."""
    out = tmp_path / "report.html"
    for name in ("README.md", "report.html"):
        (tmp_path / name).write_text("mine")
        before = names_in(tmp_path)
        result = statetap("report", "--run", run.path, "--out", out)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{tmp_path / name} was not made by statetap report" in result.stderr
        assert result.stderr.count("\n") == 1
        assert names_in(tmp_path) == before
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()


def test_a_card_that_was_claimed_is_left_alone(statetap: Invoke, run: RunFolder) -> None:
    """Who takes its mark out keeps the words of their own."""
    out = run.path / "report.html"
    statetap("report", "--run", run.path, "--out", out)
    card = run.path / "README.md"
    card.write_text(card.read_text().replace(CARD_MARK, "") + "My words.\n")
    assert statetap("report", "--run", run.path, "--out", out).exit_code == 2
    assert card.read_text().endswith("My words.\n")


@pytest.mark.parametrize(
    ("out", "exit_code", "words"),
    [
        ("folder.html", 2, "is a folder"),
        ("missing/report.html", 3, "there is no folder"),
        ("README.md", 2, "let it end in .html"),
        ("report", 2, "let it end in .html"),
        ("/proc/report.html", 3, "cannot write /proc/report.html"),
        ("file/report.html", 3, "there is no folder"),
    ],
)
def test_an_out_that_cannot_be_is_a_sentence(
    statetap: Invoke, run: RunFolder, tmp_path: Path, out: str, exit_code: int, words: str
) -> None:
    """It says what to do, and leaves nothing behind."""
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    before = names_in(tmp_path)
    result = statetap("report", "--run", run.path, "--out", tmp_path / out)
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert names_in(tmp_path) == before


def test_a_folder_that_is_no_run_is_a_sentence(
    statetap: Invoke, tmp_path: Path, run: RunFolder
) -> None:
    """Missing, without a plan, or with a damaged record or ledger."""
    out = tmp_path / "report.html"
    for folder, exit_code, words in (
        (tmp_path / "nowhere", 3, "holds no run.json"),
        (tmp_path, 3, "holds no run.json"),
        (tmp_path / "not a name", 2, "cannot be a run's name"),
    ):
        result = statetap("report", "--run", folder, "--out", out)
        assert (result.exit_code, result.stdout) == (exit_code, "")
        assert words in result.stderr
    run.ledger.mkdir()
    (run.ledger / "w.jsonl").write_text("{}\n")
    result = statetap("report", "--run", run.path, "--out", out)
    assert (result.exit_code, "w.jsonl:1" in result.stderr) == (1, True)
    run.record_file.write_text("{")
    assert statetap("report", "--run", run.path, "--out", out).exit_code == 2
    assert not out.exists()


def test_a_damaged_shard_is_told_and_ends_with_1(
    statetap: Invoke, run: RunFolder, tmp_path: Path
) -> None:
    """The report is made all the same, and names it."""
    (run.shards / "w-09-00001.h5").write_bytes(b"not a shard")
    out = tmp_path / "report.html"
    result = statetap("report", "--run", run.path, "--out", out)
    assert result.exit_code == 1
    assert "tells of 1 stored sample" in result.stdout
    assert "w-09-00001.h5" in result.stderr
    assert "w-09-00001.h5" in out.read_text()
    assert "w-09-00001.h5" in (tmp_path / "README.md").read_text()


def test_a_redis_that_does_not_answer_is_no_hindrance(
    statetap: Invoke, run: RunFolder, tmp_path: Path
) -> None:
    """What follows is from the run's files, as in status."""
    out = tmp_path / "report.html"
    result = statetap("report", "--run", run.path, "--out", out, "--redis", "redis://127.0.0.1:1/0")
    assert result.exit_code == 0
    assert "the report is of the run's files alone" in result.stderr
