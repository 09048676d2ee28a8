"""Mistakes that people make: each gets one sentence and a code, and leaves nothing behind."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from statetap_local.service import free_port
from statetap_local.services import SERVER_ENVIRONMENT

_TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]
ROW = json.dumps({"conversations": _TURNS})


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "STATETAP_REDIS"}
    return subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


def statetap(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(Path(sys.executable).parent / "statetap", *arguments)


def statetap_server(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(SERVER_ENVIRONMENT / "bin" / "statetap-sglang", "--cpu", *arguments)


def assert_sentence(ended: subprocess.CompletedProcess[str], code: int, part: str) -> None:
    assert ended.returncode == code, ended.stderr
    assert part in ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.stderr.startswith("statetap")
    assert len(ended.stderr.strip().splitlines()) == 1, ended.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system; CI is root")
    folder = tmp_path / "small"
    folder.mkdir()
    options = "size=256k,mode=0700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [
        (None, 3, "no.jsonl"),
        ("", 2, "empty"),
        ("\n\n", 2, "empty"),
        ("hello\nworld\n", 2, "JSON"),
        ("\x00\xff", 2, "JSON"),
        ('{"conversations": []}\n', 2, "none that can be planned"),
        ('{"text": 1}\n{"conversations": 7}\n', 2, "none that can be planned"),
    ],
)
def test_datasets_that_cannot_be_used(
    tmp_path: Path, tiny_model: Path, content: str | None, code: int, part: str
) -> None:
    """Missing, empty, not JSON, no conversation: no run folder is made."""
    dataset = tmp_path / "no.jsonl"
    if content is not None:
        dataset.write_text(content, encoding="latin-1")
    ended = statetap("plan", dataset, "--run", tmp_path / "a-run", "--model", tiny_model)
    assert_sentence(ended, code, part)
    assert not (tmp_path / "a-run").exists()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "one.jsonl"
    path.write_text(ROW + "\n")
    return path


def test_a_missing_model(tmp_path: Path, dataset: Path) -> None:
    """The folder is named, for the producer and for the server."""
    nowhere = tmp_path / "no-model"
    ended = statetap("plan", dataset, "--run", tmp_path / "a-run", "--model", nowhere)
    assert_sentence(ended, 3, str(nowhere))
    assert not (tmp_path / "a-run").exists()
    ended = statetap_server(f"--model={nowhere}", f"--dumps={tmp_path}", f"--port={free_port()}")
    assert_sentence(ended, 3, str(nowhere))


def test_a_server_that_is_not_there(tmp_path: Path, dataset: Path, tiny_model: Path) -> None:
    """The address is named."""
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ("--run", tmp_path / "a-run", "--model", tiny_model, "--server", url)
    ended = statetap("plan", dataset, *arguments)
    assert_sentence(ended, 3, url)
    assert not (tmp_path / "a-run").exists()


def test_a_redis_that_is_not_there(tmp_path: Path, dataset: Path, tiny_model: Path) -> None:
    """Within seconds, naming host and port, and not the password."""
    planned = statetap("plan", dataset, "--run", tmp_path / "a-run", "--model", tiny_model)
    assert planned.returncode == 0
    port = free_port()
    url = f"redis://:secret-word@127.0.0.1:{port}/0"
    ended = statetap("enqueue", "--run", tmp_path / "a-run", "--redis", url)
    assert_sentence(ended, 3, f"127.0.0.1:{port}")
    assert "secret-word" not in ended.stderr


def test_a_run_disk_that_is_too_small(small_disk: Path, tmp_path: Path, tiny_model: Path) -> None:
    """Told before a single prompt is queued, with both figures."""
    dataset = tmp_path / "many.jsonl"
    rows = [ROW.replace("Yo", f"Yo number {number} " * 20) for number in range(50)]
    dataset.write_text("\n".join(rows))
    ended = statetap("plan", dataset, "--run", small_disk / "a-run", "--model", tiny_model)
    assert_sentence(ended, 3, "free")
    assert not (small_disk / "a-run").exists()


def test_shared_memory_that_is_too_small(small_disk: Path, tiny_model: Path) -> None:
    """Docker's default, for a model with large states, is noticed before the model is loaded."""
    ended = statetap_server(
        f"--model={tiny_model}", f"--dumps={small_disk}", f"--port={free_port()}"
    )
    assert_sentence(ended, 3, "one prompt of full context length needs 4 MiB")


def test_a_port_that_is_taken(tmp_path: Path, tiny_model: Path) -> None:
    """Told before the model is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = statetap_server(f"--model={tiny_model}", f"--dumps={tmp_path}", f"--port={port}")
    assert_sentence(ended, 3, f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 2), (("no-such-command",), 2), (("plan",), 2), (("status", "--run", "/no/such"), 3)],
)
def test_wrong_use_ends_without_a_traceback(arguments: tuple[str, ...], code: int) -> None:
    """Usage errors show how the command is used."""
    ended = statetap(*arguments)
    assert ended.returncode == code
    assert "Traceback" not in ended.stdout + ended.stderr
