"""``statetap diagnose`` as people and scripts meet it."""

import json
from pathlib import Path

import pytest
from statetap_producer.cli import app
from typer.testing import CliRunner

from .conftest import Invoke

LOG = Path(__file__).parent / "data" / "sglang_0_5_23.log"


def test_people_get_tables_and_a_verdict(statetap: Invoke) -> None:
    """The verdict is bad and the command has done its work: exit code 0, nothing on stderr."""
    result = statetap("diagnose", LOG)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = " ".join(result.stdout.split())
    for words in (
        "rows of several prompts lie in one dump",
        "199 rows missing: the prefix cache had them",
        "28 rows of tokens that others generate lie in the same dumps",
        "3 times a request was retracted",
        "2 requests aborted",
        "crowd-3 03:25:35 60 0 10.97 beside others, retracted",
    ):
        assert words in shown
    assert shown.endswith(
        "A directory scan picks up 25 of 35 prefill batches wrongly: 71%, 2,576 of 3,297 tokens."
    )


def test_scripts_get_one_document(statetap: Invoke) -> None:
    """Every count, every minute, and the first requests."""
    result = statetap("diagnose", LOG, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    document = json.loads(result.stdout)
    assert {key: value for key, value in document.items() if not isinstance(value, list)} == {
        "chunked_prefill_size": 256,
        "is_mixed_chunk": True,
        "num_batches": 35,
        "num_tokens": 3297,
        "num_wrong_batches": 25,
        "num_wrong_tokens": 2576,
        "kinds": {
            "several-prompts": {"num_batches": 1, "num_tokens": 120},
            "chunked": {"num_batches": 11, "num_tokens": 1822},
            "cached": {"num_batches": 2, "num_tokens": 21},
            "beside-decoding": {"num_batches": 13, "num_tokens": 1567},
            "no-prompt": {"num_batches": 4, "num_tokens": 11},
        },
        "num_cached_tokens": 199,
        "num_decoding_requests": 28,
        "num_retracted_requests": 3,
        "num_aborted_requests": 2,
        "num_batches_of_unknown_chunk_size": 0,
        "num_incomplete_lines": 0,
        "num_finished_requests": 24,
        "num_affected_requests": 18,
    }
    assert [minute["begin"] for minute in document["minutes"]] == ["2026-11-30T03:25:00"]
    assert document["affected_requests"][0] == {
        "rid": "prefix-1",
        "ended": "2026-11-30T03:25:11",
        "num_prompt_tokens": 120,
        "num_cached_tokens": 100,
        "num_retractions": 0,
        "duration_s": document["affected_requests"][0]["duration_s"],
        "num_dumps": 1,
        "is_beside_others": False,
        "is_aborted": False,
    }


def test_standard_input(statetap: Invoke) -> None:
    """A dash reads what is piped in, and gives the same."""
    piped = CliRunner().invoke(app, ["diagnose", "-"], input=LOG.read_bytes())
    assert piped.exit_code == 0
    assert piped.stdout == statetap("diagnose", LOG).stdout
    empty = CliRunner().invoke(app, ["diagnose", "-"], input=b"")
    assert (empty.exit_code, empty.stdout) == (2, "")
    assert empty.stderr.startswith("statetap: standard input is empty")


@pytest.mark.parametrize(("content", "words"), [("", "is empty"), ("x\n", "no line of a prefill")])
def test_wrong_logs_are_wrong_use(
    statetap: Invoke, tmp_path: Path, content: str, words: str
) -> None:
    """Exit code 2, one sentence that names the file, nothing on stdout."""
    log = tmp_path / "server.log"
    log.write_text(content)
    result = statetap("diagnose", log, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"statetap: {log}")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_log(statetap: Invoke, tmp_path: Path) -> None:
    """Exit code 3."""
    result = statetap("diagnose", tmp_path / "no.log")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        f"statetap: cannot read {tmp_path / 'no.log'}: No such file or directory; give a log of an "
        "SGLang server\n"
    )


def test_help(statetap: Invoke) -> None:
    """The command is listed, and its argument and option explained."""
    assert "diagnose" in statetap("--help").stdout
    shown = statetap("diagnose", "--help").stdout
    for words in ("directory scan", "LOG", "--json", "stdin"):
        assert words in shown
