"""A dump folder that fills up, dumps that nobody fetches, and states before the final norm.

One server with all three, because a start takes longer than these tests.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from statetap_contract import Job, TransientError, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    PATIENCE_S,
    Capture,
    assert_right,
    generate,
    jobs_of,
    prompts_of,
    request_body,
)
from .reference import Reference

#: A prompt of 4,096 tokens, the longest that the model takes, needs 4 MiB and some.
FOLDER_BYTES = 5 << 20


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    """A tmpfs of 5 MiB. To mount one takes root, and a container that is allowed to."""
    folder = Path(tempfile.mkdtemp(prefix="statetap-test-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={FOLDER_BYTES},mode=0700", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"a small tmpfs cannot be had here: {mounted.stderr.strip()}")
    yield folder
    # Lazily: the last of the server's processes may still hold its lock on the folder.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=["--norm=pre", "--keep=30", "--chunked-prefill-size=256"],
    )
    yield service
    service.stop()


@pytest.fixture(autouse=True)
def empty(dumps: Path) -> Iterator[None]:
    """Each test begins with an empty folder, and nothing half-made may be left in it."""
    yield
    for _ in range(100):
        if not [file for file in dumps.iterdir() if file.suffix in (".reserved", ".unfinished")]:
            break
        time.sleep(0.1)
    else:
        pytest.fail(f"left behind: {list(dumps.iterdir())}")
    for file in dumps.glob("*.safetensors"):
        file.unlink()


def test_states_before_the_final_norm(dumps: Path, reference: Reference, capture: Capture) -> None:
    """``--norm pre`` gives what HF's final norm is given, in chunks and side by side."""
    captured = capture(prompts_of([1, 40, 256, 257, 700, 90], 1))
    assert {receipt.norm for _, receipt in captured} == {"pre"}
    assert_right(dumps, reference, captured)


def test_a_full_folder_is_said_and_survived(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """503 with Retry-After and the reason; with room again, the same request works."""
    capture(prompts_of([3000], 2))
    (late,) = jobs_of(server.url, prompts_of([3100], 3))
    answer = httpx.post(f"{server.url}/generate", json=request_body(late), timeout=PATIENCE_S)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "2"
    assert "no room for a dump" in answer.text
    assert len(list(dumps.glob("*.safetensors"))) == 1
    # Ordinary traffic and smaller prompts are not in the way of it.
    assert generate(server, [5, 6, 7], 8)["meta_info"]["completion_tokens"] == 8
    assert_right(dumps, reference, capture(prompts_of([50], 4)))
    client = Server(server.url)
    with pytest.raises(TransientError) as caught:
        client.capture(late)
    assert (caught.value.kind, caught.value.retry_after_s) == ("server-busy", 2.0)
    for file in dumps.glob("*.safetensors"):
        file.unlink()
    assert_right(dumps, reference, [(late, client.capture(late))])


def test_a_folder_filled_by_somebody_else(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """To the last page: even the smallest dump is refused, and works once the file is gone."""
    foreign = dumps / "foreign"
    with foreign.open("wb") as stream:
        free = os.statvfs(dumps)
        os.posix_fallocate(stream.fileno(), 0, free.f_bavail * free.f_frsize)
    (job,) = jobs_of(server.url, prompts_of([1], 5))
    answer = httpx.post(f"{server.url}/generate", json=request_body(job), timeout=PATIENCE_S)
    foreign.unlink()
    assert answer.status_code == 503
    assert_right(dumps, reference, capture(prompts_of([1], 5)))


def test_a_folder_too_small_for_all_at_once_serves_them_one_after_another(
    server: LocalServer, dumps: Path, reference: Reference
) -> None:
    """24 dumps of 1.5 MiB through 5 MiB: each client waits as it is told, none is lost."""
    jobs = jobs_of(server.url, prompts_of([1500] * 24, 6))

    def fetch(job: Job) -> int:
        num_refusals = 0
        client = Server(server.url)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                receipt = client.capture(job)
            except TransientError as error:
                if error.kind != "server-busy":
                    raise
                num_refusals += 1
                time.sleep(0.1)  # sooner than it asks for, so that the folder stays full
                continue
            assert_right(dumps, reference, [(job, receipt)])
            (dumps / dump_name(job.key)).unlink()
            return num_refusals
        pytest.fail("the prompt was never captured")

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(fetch, jobs)) > 0  # it really was too small


def test_dumps_that_nobody_fetches_expire(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """Their space comes back by itself; a client that comes later has the prompt computed anew."""
    prompts = prompts_of([30, 20], 7)
    (old, first), (young, _) = capture(prompts)
    os.utime(dumps / dump_name(old.key), (1, 1))
    for _ in range(300):
        if not (dumps / dump_name(old.key)).exists():
            break
        time.sleep(0.1)
    assert [file.name for file in dumps.glob("*.safetensors")] == [dump_name(young.key)]
    client = Server(server.url)
    again = client.capture(old)
    assert again.attempt != first.attempt
    assert_right(dumps, reference, [(old, again)])
