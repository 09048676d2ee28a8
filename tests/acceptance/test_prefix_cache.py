"""Captured prompts neither give to the prefix cache of other traffic nor take from it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from statetap_local.services import LocalServer

from .capturing import Capture, capture_all, generate, prompts_of


@pytest.fixture
def cold_server(server: LocalServer) -> LocalServer:
    """The session's server with nothing in its cache."""
    httpx.post(f"{server.url}/flush_cache", params={"timeout": 30}, timeout=60).raise_for_status()
    return server


def num_hits(server: LocalServer, prompts: list[list[int]]) -> list[int]:
    """Tokens of each prompt that came out of the cache."""
    return [
        generate(server, ids, max_new_tokens=4)["meta_info"]["cached_tokens"] for ids in prompts
    ]


def test_other_traffic_hits_what_it_hit_before(cold_server: LocalServer, dumps: Path) -> None:
    """As many tokens as without captures, while these run and after more than the pool holds."""
    (prefix,) = prompts_of([300], 40)
    plain = [prefix + tail for tail in prompts_of([20, 60, 100, 7], 41)]
    num_hits(cold_server, plain)
    without = num_hits(cold_server, plain)
    assert min(without) >= len(prefix)  # the cache is in use
    captured = [prefix + tail for tail in prompts_of([5, 90, 200], 42)]
    captured += prompts_of([430] * 40, 43)  # 17,200 tokens, the pool holds 16,384
    with ThreadPoolExecutor(1) as thread:
        capturing = thread.submit(capture_all, cold_server.url, dumps, captured, 8)
        meanwhile = num_hits(cold_server, plain)
        capturing.result()
    assert meanwhile == without
    assert num_hits(cold_server, plain) == without


def test_a_captured_prompt_leaves_nothing_to_hit(
    cold_server: LocalServer, capture: Capture
) -> None:
    """A plain request with the very prompt of a capture is computed from its first token."""
    prompts = prompts_of([400, 100], 44)
    capture(prompts)
    assert num_hits(cold_server, prompts) == [0, 0]
    assert min(num_hits(cold_server, prompts)) > 50  # now that others have asked
