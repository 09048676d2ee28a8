"""Every row belongs to its prompt: the patched server against HF transformers."""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from statetap_contract import FIELD
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    Capture,
    ask,
    assert_right,
    capture_in_time,
    generate,
    jobs_of,
    post,
    prompts_of,
    request_body,
    unfinished,
    vanish,
)
from .reference import Reference


def test_one_prompt(dumps: Path, reference: Reference, capture: Capture) -> None:
    """A short prompt alone."""
    assert_right(dumps, reference, capture(prompts_of([40], 1)))


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 512, 513, 3000])
def test_lengths_around_the_chunk_size(
    dumps: Path, reference: Reference, capture: Capture, length: int
) -> None:
    """One token, and every way in which a prompt can meet the edge of a chunk."""
    assert_right(dumps, reference, capture(prompts_of([length], length)))


def test_many_at_once(dumps: Path, reference: Reference, capture: Capture) -> None:
    """48 prompts of 5 to 700 tokens: they share batches and are cut into chunks."""
    lengths = random.Random(2).choices(range(5, 700), k=48)
    assert_right(dumps, reference, capture(prompts_of(lengths, 2)))


def test_the_same_prompts_again(dumps: Path, reference: Reference, capture: Capture) -> None:
    """With the prefix cache on, a repeated prompt is computed anew, row for row."""
    prompts = prompts_of([300, 50, 120], 3)
    first = capture(prompts)
    again = capture(prompts)
    assert_right(dumps, reference, again)
    assert {receipt.attempt for _, receipt in first}.isdisjoint(
        receipt.attempt for _, receipt in again
    )


def test_shared_prefixes_in_a_warm_cache(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """A system prompt that others have put into the cache costs captured prompts no row."""
    (prefix,) = prompts_of([200], 4)
    for _ in range(2):
        answer = generate(server, prefix, max_new_tokens=4)
    assert answer["meta_info"]["cached_tokens"] > 100  # the cache really is warm
    prompts = [prefix + tail for tail in prompts_of([5, 60, 1, 300], 5)] + [list(prefix)]
    assert_right(dumps, reference, capture(prompts))


def test_among_other_traffic(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """Plain requests that generate and health checks run through the same batches."""
    plain = prompts_of([100] * 12, 6)
    with ThreadPoolExecutor(14) as threads:
        others = [threads.submit(generate, server, ids, max_new_tokens=64) for ids in plain]
        checks = [
            threads.submit(httpx.get, f"{server.url}/health_generate", timeout=60) for _ in range(4)
        ]
        captured = capture(prompts_of([30, 290, 600, 45, 410, 9, 270, 33], 7))
        for other in others:
            assert other.result()["meta_info"]["completion_tokens"] == 64
            assert FIELD not in other.result()["meta_info"]
        assert [check.result().status_code for check in checks] == [200] * 4
    assert_right(dumps, reference, captured)


def test_a_known_key_is_answered_from_its_dump(capture: Capture, server: LocalServer) -> None:
    """Same key, same prompt: the receipt of the first attempt, without computing."""
    ((job, receipt),) = capture(prompts_of([64], 8))
    client = Server(server.url)
    assert client.capture(job) == receipt


def test_a_key_in_flight_is_refused(server: LocalServer) -> None:
    """Of two requests with one key only one is computed; the other is told so, or replayed."""
    jobs = jobs_of(server.url, prompts_of([3500], 9)) * 6
    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(lambda job: ask(server.url, job), jobs))
    assert {answer.status for answer in answers} == {200, 409}
    assert len({answer.receipt for answer in answers if answer.status == 200}) == 1


def test_attempts_at_the_same_moment(server: LocalServer) -> None:
    """15 keys, four times each, all at once: none is taken for a bad request."""
    jobs = jobs_of(server.url, prompts_of([200] * 15, 16)) * 4
    with ThreadPoolExecutor(len(jobs)) as threads:
        answers = list(threads.map(lambda job: ask(server.url, job), jobs))
    assert {answer.status for answer in answers} <= {200, 409}
    receipts = {answer.receipt for answer in answers if answer.status == 200}
    assert {receipt.key for receipt in receipts if receipt} == {job.key for job in jobs}
    assert len(receipts) == 15


def test_clients_that_vanish_do_no_harm(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """Their dump is finished for the retry or dropped; either way the next ones are right."""
    gone = jobs_of(server.url, prompts_of([2000, 1500, 1800], 10))
    for job in gone:
        assert vanish(server.url, job, after_s=0.02)
    assert_right(dumps, reference, capture(prompts_of([100, 400], 11)))
    # A retry of a vanished client's prompt succeeds, now or once the first try has ended.
    client = Server(server.url)
    for job in gone:
        assert_right(dumps, reference, [(job, capture_in_time(client, job))])
    assert not unfinished(dumps)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"input_ids": [5, 512]}, 400),
        ({"input_ids": [5, -1]}, 400),
        ({"input_ids": []}, 400),
        ({"input_ids": "text"}, 400),
        ({"rid": "another"}, 400),
        ({"sampling_params": {"n": 2}}, 400),
        ({"sampling_params": {"custom_params": {FIELD: {"key": "../../x"}}}}, 400),
        ({"sampling_params": {"custom_params": {FIELD: [1]}}}, 400),
        # These ended an unpatched server, or one that looked at their truth only.
        ({"sampling_params": {"min_new_tokens": 2, "stop_token_ids": [100_000]}}, 400),
        ({"token_indices_to_pool": []}, 400),
        ({"positional_embed_overrides": 0}, 400),
    ],
)
def test_hostile_requests_harm_nobody(
    server: LocalServer, dumps: Path, capture: Capture, change: dict[str, Any], status: int
) -> None:
    """A 4xx, nothing in the dump folder, and the server goes on."""
    before = set(dumps.iterdir())
    (job,) = jobs_of(server.url, [[5, 6]])
    body = request_body(job)
    parameters = body["sampling_params"] | change.get("sampling_params", {})
    body |= change | {"sampling_params": parameters}
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=30)
    assert answer.status_code == status
    assert set(dumps.iterdir()) == before
    assert len(capture(prompts_of([3], 12))) == 1


def test_the_weights_of_a_capturing_server_are_fixed(server: LocalServer, tiny_model: Path) -> None:
    """Other weights under the same capture spec would be stored as if they were the first."""
    for route, body in (
        ("update_weights_from_disk", {"model_path": str(tiny_model)}),
        ("weights_checker", {"action": "reset_tensors"}),
    ):
        answer = post(server.url, route, body)
        assert not answer.is_success
        assert "weights of a capturing server" in answer.text
    assert post(server.url, "weights_checker", {"action": "checksum"}).is_success


def test_a_prompt_beyond_the_context_is_refused(
    server: LocalServer, dumps: Path, reference: Reference, capture: Capture
) -> None:
    """It is not cut in silence; the longest one that the handshake promises is taken."""
    client = Server(server.url)
    context_length = client.handshake().context_length
    for length in (5000, context_length):
        (job,) = jobs_of(server.url, prompts_of([length], 13))
        assert ask(server.url, job).status == 400
    assert_right(dumps, reference, capture(prompts_of([context_length - 1], 14)))
