"""Servers of several processes: tensor parallel and data parallel."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from statetap_contract import FIELD
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    Capture,
    ask,
    assert_no_leftovers,
    assert_right,
    jobs_of,
    other_traffic,
    prompts_of,
)
from .reference import Reference


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module", params=["--tp-size=2", "--dp-size=2"])
def server(
    request: pytest.FixtureRequest,
    tiny_model: Path,
    dumps: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalServer]:
    """A server of two ranks, each on a core of its own where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=[
            request.param,
            "--max-total-tokens=16384",
            "--chunked-prefill-size=256",
            "--enable-mixed-chunk",
        ],
        environment={"SGLANG_CPU_OMP_THREADS_BIND": f"{cores[0]}|{cores[-1]}"},
    )
    yield service
    service.stop()


def test_rows_of_two_ranks(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """24 prompts beside others that decode; each rank that answers clients took its share."""
    with other_traffic(server, num_clients=2):
        captured = capture(prompts_of([1, 40, 255, 256, 257, 600] * 4, 60))
    assert_right(dumps, reference, captured)
    assert_no_leftovers(dumps)
    states = httpx.get(f"{server.url}/server_info", timeout=60).json()["internal_states"]
    num_published = [state[FIELD]["num_published"] for state in states]
    assert all(num_published)
    assert sum(num_published) == len(captured)


def test_known_keys_are_replayed(server: LocalServer, capture: Capture) -> None:
    """Whichever rank took a key first, and whoever's turn it is."""
    captured = capture(prompts_of([30, 20, 10, 40], 61))
    client = Server(server.url)
    for _ in range(3):
        assert [(job, client.capture(job)) for job, _ in captured] == captured


def test_a_key_in_flight_is_computed_once(server: LocalServer) -> None:
    """The ranks take turns, yet only one request of a key reaches any of them."""
    jobs = jobs_of(server.url, prompts_of([3500], server.url)) * 6  # new to the folder
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda job: ask(server.url, job), jobs))
    assert {answer.status for answer in answers} == {200, 409}
    assert len({answer.receipt for answer in answers if answer.status == 200}) == 1
