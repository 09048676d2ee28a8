"""The worker's command: one sentence and a code for every mistake."""

import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "statetap-worker"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        ([], 2, "--dumps"),
        (["--dumps=/no/such", "--runs=."], 2, "STATETAP_REDIS"),
        (["--dumps=/no/such", "--runs=.", "--redis=redis://127.0.0.1:1"], 3, "/no/such"),
        (["--dumps=.", "--runs=/no/such", "--redis=redis://127.0.0.1:1"], 3, "/no/such"),
        (["--dumps=.", "--runs=.", "--redis=redis://127.0.0.1:1"], 3, "Redis"),
        (["--dumps=.", "--runs=.", "--redis=ftp://x"], 2, "Redis URL"),
        (["--dumps=.", "--runs=.", "--name=a/b", "--redis=redis://x"], 2, "a/b"),
        (["--dumps=.", "--runs=.", "--processes=0", "--redis=redis://x"], 2, "0 processes"),
        (["--dumps=.", "--runs=.", "--shard-gib=0", "--redis=redis://x"], 2, "0.0 GiB"),
        (["--dumps=.", "--runs=.", "--unknown"], 2, "--unknown"),
        (["--dumps=.", "--runs=.", "--log-level=loud"], 2, "loud"),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--metrics-port=0"], 2, "'0'"),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--metrics-port=65536"], 2, "65536"),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--metrics-port=:9400"], 2, ":9400"),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--metrics-port=a b:1"], 2, "a b:1"),
        (
            ["--dumps=.", "--runs=.", "--redis=redis://x", "--server=localhost:30000"],
            2,
            "localhost:30000",
        ),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--server=http://["], 2, "http://["),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--server=https://x"], 2, "https://x"),
        (["--dumps=.", "--runs=.", "--redis=redis://x", "--server=http://u@x"], 2, "http://u@x"),
    ],
)
def test_mistakes_get_a_sentence(arguments: list[str], code: int, reason: str) -> None:
    """No traceback, and the sentence names the value."""
    ended = run(*arguments)
    assert ended.returncode == code
    assert ended.stderr.startswith("statetap-worker: ")
    assert ended.stderr.count("\n") == 1
    assert reason in ended.stderr


def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told at the start, without the key."""
    monkeypatch.setenv("STATETAP_API_KEY", "two words")
    ended = run("--dumps=.", "--runs=.", "--redis=redis://127.0.0.1:1")
    assert ended.returncode == 2
    assert ended.stderr.startswith("statetap-worker: the key in STATETAP_API_KEY must be")
    assert "two words" not in ended.stderr


@pytest.mark.parametrize("password", ["secret-word", "secret/word", "secret#word", "secret@word"])
def test_the_password_is_not_shown(password: str) -> None:
    """Errors end in logs that others read, however odd the password."""
    ended = run("--dumps=.", "--runs=.", f"--redis=redis://:{password}@127.0.0.1:1")
    assert ended.returncode in {2, 3}
    assert "secret" not in ended.stderr
