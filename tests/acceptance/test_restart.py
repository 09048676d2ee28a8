"""A server that ends in the middle of captures, and the next one on the same dump folder."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeAlias

import pytest
from statetap_contract import HEADER_BYTES, Job, Receipt, TransientError, decode_header, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    PATIENCE_S,
    assert_no_leftovers,
    assert_right,
    capture_in_time,
    jobs_of,
    prompts_of,
    unfinished,
)
from .reference import Reference

#: Seconds that SGLang may take to end once it was asked to.
_END_S: Final = 60

Start: TypeAlias = Callable[[], LocalServer]


@pytest.fixture
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def start(tiny_model: Path, dumps: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts a server on the dump folder."""
    servers: list[LocalServer] = []

    def start_on_dumps() -> LocalServer:
        arguments = ["--max-total-tokens=16384", "--chunked-prefill-size=256"]
        servers.append(LocalServer(tiny_model, dumps, tmp_path / "log", arguments=arguments))
        return servers[-1]

    yield start_on_dumps
    for server in servers:
        server.stop()


def test_ends_in_the_middle_of_captures(start: Start, dumps: Path, reference: Reference) -> None:
    """Killed, then asked to end: published dumps stay and are replayed, nothing else is left."""
    server = start()
    known: list[tuple[Job, Receipt]] = []
    for seed, end in ((50, LocalServer.kill), (51, ask_to_end)):
        jobs = jobs_of(server.url, prompts_of([900, 400, 50] * 4, seed))
        published = end_in_the_middle(server, dumps, jobs, end)
        server = start()
        assert_no_leftovers(dumps)
        client = Server(server.url)
        assert [(job, client.capture(job)) for job, _ in published] == published
        known += [(job, capture_in_time(client, job)) for job in jobs]
    assert_right(dumps, reference, known)


def end_in_the_middle(
    server: LocalServer, dumps: Path, jobs: list[Job], end: Callable[[LocalServer], None]
) -> list[tuple[Job, Receipt]]:
    """Ends a server that is capturing. Returns what it published, by what lies on the disk."""
    client = Server(server.url)
    with ThreadPoolExecutor(len(jobs)) as threads:
        asked = [threads.submit(client.capture, job) for job in jobs]
        freeze_in_the_middle(server, dumps, jobs)
        end(server)
    published = []
    for job, one in zip(jobs, asked, strict=True):
        receipt = read_receipt(dumps, job)
        error = one.exception()
        if error is None:
            assert one.result() == receipt
        else:
            assert isinstance(error, TransientError), error
        if receipt is not None:
            published.append((job, receipt))
    assert published
    return published


def freeze_in_the_middle(server: LocalServer, dumps: Path, jobs: list[Job]) -> None:
    """Stops the server's processes once some of the jobs are done and some are not."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        os.killpg(server.pid, signal.SIGSTOP)
        done = [job for job in jobs if (dumps / dump_name(job.key)).exists()]
        if done and len(done) < len(jobs) and unfinished(dumps):
            return
        os.killpg(server.pid, signal.SIGCONT)
        time.sleep(0.01)  # lets it go on
    pytest.fail("the server was never in the middle of captures")


def ask_to_end(server: LocalServer) -> None:
    """SIGTERM, as an operator or a supervisor sends it."""
    os.kill(server.pid, signal.SIGTERM)
    os.killpg(server.pid, signal.SIGCONT)
    server.wait(_END_S)


def read_receipt(dumps: Path, job: Job) -> Receipt | None:
    """The receipt in a dump's header; None where there is no dump."""
    path = dumps / dump_name(job.key)
    return decode_header(path.read_bytes()[:HEADER_BYTES]) if path.exists() else None
