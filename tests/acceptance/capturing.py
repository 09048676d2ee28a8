"""What the acceptance tests do with a patched server: make prompts, capture, judge the rows."""

import random
import re
import ssl
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import pytest
from safetensors.torch import load_file
from statetap_contract import FIELD, CaptureRequest, Job, Prompt, Receipt, TransientError, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .reference import Reference

#: Largest difference of a float32 state; chunked and mixed batches sum in another order.
BOUND = 1e-4

#: Captures prompts, all in flight at once.
Capture: TypeAlias = Callable[[list[list[int]]], list[tuple[Job, Receipt]]]

#: Seconds after which an answer counts as lost.
PATIENCE_S = 120.0

#: Nothing here is encrypted; without it httpx would load certificates for every request.
_NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

#: Failures that pass: a retry must succeed once whatever caused them has ended.
_PASSING = ("key-in-flight", "request-aborted")


def prompts_of(lengths: list[int], seed: int | str) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(2, 512) for _ in range(length)] for length in lengths]


def assert_right(dumps: Path, reference: Reference, captured: list[tuple[Job, Receipt]]) -> None:
    for job, receipt in captured:
        ids = job.prompt.token_ids.tolist()
        tensors = load_file(dumps / dump_name(job.key))
        assert tensors["token_ids"].tolist() == ids
        expected = reference.states(ids, receipt.layers, receipt.norm)
        assert tensors["states"].shape == expected.shape
        difference = (tensors["states"] - expected).abs().max().item()
        assert difference <= BOUND, f"{len(ids)} tokens, off by {difference}"


def capture_all(
    url: str, dumps: Path, prompts: list[list[int]], num_in_flight: int | None = None
) -> list[tuple[Job, Receipt]]:
    """Captures prompts, all in flight at once or as many as given."""
    client = Server(url)
    with ThreadPoolExecutor(num_in_flight or len(prompts)) as threads:
        jobs = jobs_of(url, prompts)
        for job in jobs:  # a key that was captured before would only be replayed
            (dumps / dump_name(job.key)).unlink(missing_ok=True)
        return list(zip(jobs, threads.map(client.capture, jobs), strict=True))


def job_of(spec_digest: str, ids: list[int]) -> Job:
    return Job.of("r", spec_digest, Prompt(array("i", ids), ()))


def jobs_of(url: str, prompts: list[list[int]]) -> list[Job]:
    """Jobs for the spec that a server captures."""
    client = Server(url)
    spec = client.handshake().spec
    return [job_of(spec.digest, ids) for ids in prompts]


def request_body(job: Job, max_new_tokens: int = 0) -> dict[str, Any]:
    """A capture request as it goes over the wire; workers ask for no new tokens."""
    request = CaptureRequest(job.key, job.prompt.num_tokens, job.spec_digest)
    return {
        "rid": job.key,
        "input_ids": job.prompt.token_ids.tolist(),
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "temperature": 0,
            "custom_params": {FIELD: request.to_json()},
        },
    }


def post(
    url: str, path: str, body: dict[str, Any], timeout_s: float = PATIENCE_S
) -> httpx.Response:
    """One request over a connection of its own."""
    return httpx.post(f"{url}/{path}", json=body, timeout=timeout_s, verify=_NO_CERTIFICATES)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one capture request, good or bad."""

    status: int
    text: str
    receipt: Receipt | None
    #: How often SGLang took the request out of a batch and began it again.
    num_retractions: int


def ask(url: str, job: Job, max_new_tokens: int = 0) -> Answer:
    """Sends one capture request and takes the answer as it comes."""
    answer = post(url, "generate", request_body(job, max_new_tokens))
    meta_info = answer.json().get("meta_info", {}) if answer.is_success else {}
    receipts = meta_info.get(FIELD)
    return Answer(
        answer.status_code,
        answer.text,
        Receipt.from_json(receipts[0]) if receipts else None,
        meta_info.get("num_retractions", 0),
    )


def capture_in_time(client: Server, job: Job) -> Receipt:
    """Captures, and tries again while an earlier attempt is in flight or being aborted."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            return client.capture(job)
        except TransientError as error:
            if error.kind not in _PASSING:
                raise
            time.sleep(0.05)  # between two looks
    pytest.fail("the key stayed in flight")


def vanish(url: str, job: Job, after_s: float) -> bool:
    """Asks and hangs up after so long; whether the answer was not there yet."""
    try:
        post(url, "generate", request_body(job), after_s)
    except httpx.TimeoutException:
        return True
    return False


def generate(server: LocalServer, ids: list[int], max_new_tokens: int) -> dict[str, Any]:
    """A plain request, as any other client of the server sends it."""
    body = {
        "input_ids": ids,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
            "temperature": 0,
        },
    }
    answer = post(server.url, "generate", body)
    answer.raise_for_status()
    result: dict[str, Any] = answer.json()
    return result


@contextmanager
def other_traffic(server: LocalServer, num_clients: int = 4) -> Iterator[list[str]]:
    """Plain requests that decode 64 tokens, and health checks, for as long as the block lasts.

    Yields:
        A list that grows by a name with each right answer.
    """
    is_over = threading.Event()
    answered: list[str] = []

    def decode(seed: int) -> None:
        generator = random.Random(seed)
        while not is_over.is_set():
            ids = [generator.randrange(2, 512) for _ in range(generator.randrange(20, 200))]
            meta_info = generate(server, ids, max_new_tokens=64)["meta_info"]
            assert meta_info["completion_tokens"] == 64
            assert FIELD not in meta_info
            answered.append("plain request")

    def check_health() -> None:
        while not is_over.wait(0.2):
            answer = httpx.get(
                f"{server.url}/health_generate", timeout=PATIENCE_S, verify=_NO_CERTIFICATES
            )
            assert answer.status_code == 200
            answered.append("health check")

    with ThreadPoolExecutor(num_clients + 1) as threads:
        others = [threads.submit(decode, seed) for seed in range(num_clients)]
        others.append(threads.submit(check_health))
        try:
            yield answered
        finally:
            is_over.set()
    for other in others:
        other.result()


def unfinished(dumps: Path) -> list[Path]:
    """Dumps that are still being filled, or that somebody forgot."""
    return list(dumps.glob("*.unfinished"))


def assert_no_leftovers(dumps: Path) -> None:
    """No dump stays half-written; the writer may be a moment behind the answers."""
    deadline_s = time.monotonic() + 10
    while unfinished(dumps):
        assert time.monotonic() < deadline_s, f"left over: {unfinished(dumps)}"
        time.sleep(0.01)  # between two looks


def num_retracted(server: LocalServer, reason: str) -> int:
    """Requests that the scheduler says it has taken out of its batch."""
    pattern = rf"{reason}.*#retracted_reqs: (\d+)"
    return sum(int(number) for number in re.findall(pattern, server.log.read_text()))


def write_plugin(folder: Path, source: str) -> dict[str, str]:
    """Writes a second plugin for SGLang: a module with a function ``register``.

    Returns:
        The environment of a server that is to load it.
    """
    (folder / "other_plugin.py").write_text(source)
    metadata = folder / "other_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nother = other_plugin:register\n"
    )
    return {"PYTHONPATH": str(folder)}
