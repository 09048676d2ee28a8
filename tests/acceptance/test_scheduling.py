"""Every row belongs to its prompt whatever the scheduler does: four servers, one at a time."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from statetap_contract import Job, Receipt, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    PATIENCE_S,
    Answer,
    Capture,
    ask,
    assert_no_leftovers,
    assert_right,
    capture_in_time,
    generate,
    jobs_of,
    num_retracted,
    other_traffic,
    post,
    prompts_of,
    vanish,
)
from .reference import Reference

_ARGUMENTS: Final = {
    "overlap": ["--enable-mixed-chunk"],
    "no-overlap": ["--enable-mixed-chunk", "--disable-overlap-schedule"],
    "forced-retraction": [],
    # Room for a fraction of what the test decodes, and a scheduler that expects short answers.
    "small-pool": ["--max-total-tokens=1024", "--schedule-conservativeness=0.01"],
}

#: SGLang's own tests take a decoding request out of the batch at every so many steps.
_ENVIRONMENT: Final = {
    "forced-retraction": {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "2"}
}

_any_overlap = pytest.mark.parametrize("server", ["overlap", "no-overlap"], indirect=True)


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest,
    tiny_model: Path,
    dumps: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LocalServer]:
    """A server with chunks of 128 tokens, the prefix cache on, and what the parameter names."""
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=[
            "--max-total-tokens=16384",
            "--chunked-prefill-size=128",
            *_ARGUMENTS[request.param],
        ],
        environment=_ENVIRONMENT.get(request.param),
    )
    yield service
    service.stop()


@_any_overlap
def test_the_same_chunked_prompts_twice(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """32 at once, most cut into chunks of 128, in batches that others decode in."""
    prompts = prompts_of([500] * 8 + [127, 128, 129, 255, 256, 257] + [1, 2, 9] * 6, 20)
    with other_traffic(server):
        first = capture(prompts)
        assert_right(dumps, reference, first)
        again = capture(prompts)
    assert_right(dumps, reference, again)
    assert {receipt.attempt for _, receipt in first}.isdisjoint(
        receipt.attempt for _, receipt in again
    )


@_any_overlap
def test_long_shared_prefixes(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """Prompts that begin with the same 600 tokens, which the cache holds and others use."""
    (prefix,) = prompts_of([600], 21)
    prompts = [
        prefix[:length] + tail
        for length in (600, 599, 128)
        for tail in prompts_of([1, 40, 128, 400], length)
    ]
    for _ in range(2):
        cached = generate(server, prefix, max_new_tokens=4)["meta_info"]["cached_tokens"]
    assert cached > 500  # the cache really is warm
    with other_traffic(server):
        captured = capture([*prompts, prefix])
    assert_right(dumps, reference, captured)


@_any_overlap
def test_clients_that_vanish_in_between(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """Waiting, in the middle of their chunks or nearly done: the others' rows stay right."""
    gone = jobs_of(server.url, prompts_of([700] * 8, server.url))  # keys that are new to the folder
    with other_traffic(server), ThreadPoolExecutor(8) as threads:
        hung_up = threads.map(
            lambda turn: vanish(server.url, turn[1], after_s=0.05 * (turn[0] + 1)), enumerate(gone)
        )
        captured = capture(prompts_of([300, 10, 128, 500] * 2, 23))
        assert any(hung_up)
        client = Server(server.url)
        retried = [(job, capture_in_time(client, job)) for job in gone]
    assert_right(dumps, reference, captured + retried)
    assert_no_leftovers(dumps)


@_any_overlap
@pytest.mark.parametrize("mode", ["in_place", "retract", "abort"])
def test_pause_and_continue(
    server: LocalServer, dumps: Path, reference: Reference, mode: str
) -> None:
    """In the middle of captures: a receipt or a clear error for each, and no wrong row."""
    # Keys that are new to the folder: others would be answered at once.
    jobs = jobs_of(server.url, prompts_of([500, 90, 900, 128] * 4, f"{server.url} {mode}"))
    with ThreadPoolExecutor(len(jobs)) as threads:
        asked = [threads.submit(ask, server.url, job) for job in jobs]
        wait_for_dumps(dumps, jobs)
        post(server.url, "pause_generation", {"mode": mode}).raise_for_status()
        time.sleep(0.3)  # long enough for some of them to end, were they not paused
        num_paused = sum(not one.done() for one in asked)
        post(server.url, "continue_generation", {}).raise_for_status()
        answers = [one.result() for one in asked]
    failed = [answer for answer in answers if answer.receipt is None]
    if mode == "abort":
        assert failed
        assert all("abort" in answer.text for answer in failed)
    else:
        assert num_paused
        assert not failed
    client = Server(server.url)
    captured = [(job, capture_in_time(client, job)) for job in jobs]
    for answer, (_, receipt) in zip(answers, captured, strict=True):
        assert answer.receipt in (None, receipt)
    assert_right(dumps, reference, captured)
    assert_no_leftovers(dumps)


@pytest.mark.parametrize("server", ["forced-retraction"], indirect=True)
def test_forced_retraction(server: LocalServer, dumps: Path, reference: Reference) -> None:
    """Captured requests that decode are taken out of the batch and computed again."""
    # Few at a time: SGLang takes the same one out until it is the last.
    lengths = [40, 500, 1, 129, 900, 256] * 4
    capture_until_retracted(server, dumps, reference, lengths, num_in_flight=4, max_new_tokens=16)
    assert num_retracted(server, "Testing retraction") > 0


@pytest.mark.parametrize("server", ["small-pool"], indirect=True)
def test_retraction_in_a_full_pool(server: LocalServer, dumps: Path, reference: Reference) -> None:
    """Requests that decode outgrow the pool: SGLang takes some out, captured ones too."""
    lengths = [40, 150, 1, 129, 60, 90] * 4
    capture_until_retracted(server, dumps, reference, lengths, num_in_flight=24, max_new_tokens=100)
    assert num_retracted(server, "KV cache pool is full") > 0


def capture_until_retracted(
    server: LocalServer,
    dumps: Path,
    reference: Reference,
    lengths: list[int],
    *,
    num_in_flight: int,
    max_new_tokens: int,
) -> None:
    """Captures beside other traffic until one was taken out, and judges every row on the way.

    Whom SGLang takes out hangs on who comes when, so one round may not meet a captured request.
    """
    for seed in range(10):
        jobs = jobs_of(server.url, prompts_of(lengths, f"retraction {seed}"))
        with other_traffic(server, num_clients=2), ThreadPoolExecutor(num_in_flight) as threads:
            answers = list(threads.map(lambda job: ask(server.url, job, max_new_tokens), jobs))
        assert_right(dumps, reference, captured_of(jobs, answers))
        assert_no_leftovers(dumps)
        if any(answer.num_retractions for answer in answers):
            return
    pytest.fail("no captured request was ever taken out")


def captured_of(jobs: list[Job], answers: list[Answer]) -> list[tuple[Job, Receipt]]:
    """Jobs and receipts; each answer must hold one."""
    pairs = []
    for job, answer in zip(jobs, answers, strict=True):
        assert answer.receipt is not None, answer.text
        pairs.append((job, answer.receipt))
    return pairs


def wait_for_dumps(dumps: Path, jobs: list[Job]) -> None:
    """Until some of the jobs are done, while most are not."""
    deadline_s = time.monotonic() + PATIENCE_S
    while sum((dumps / dump_name(job.key)).exists() for job in jobs) < 2:
        assert time.monotonic() < deadline_s, "no dump came"
        time.sleep(0.002)  # between two looks
