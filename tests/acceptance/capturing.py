"""What the acceptance tests do with a patched server: make prompts, capture, judge the rows."""

import random
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from safetensors.torch import load_file
from statetap_contract import FIELD, CaptureRequest, Job, Prompt, Receipt, dump_name
from statetap_local.services import LocalServer
from statetap_worker.server import Server

from .reference import Reference

#: Largest difference of a float32 state; chunked and mixed batches sum in another order.
BOUND = 1e-4


def prompts_of(lengths: list[int], seed: int) -> list[list[int]]:
    generator = random.Random(seed)
    return [[generator.randrange(2, 512) for _ in range(length)] for length in lengths]


def assert_right(dumps: Path, reference: Reference, captured: list[tuple[Job, Receipt]]) -> None:
    for job, receipt in captured:
        ids = job.prompt.token_ids.tolist()
        tensors = load_file(dumps / dump_name(job.key))
        assert tensors["token_ids"].tolist() == ids
        expected = reference.states(ids, receipt.layers)
        assert tensors["states"].shape == expected.shape
        difference = (tensors["states"] - expected).abs().max().item()
        assert difference <= BOUND, f"{len(ids)} tokens, off by {difference}"


def capture_all(
    url: str, dumps: Path, prompts: list[list[int]], num_in_flight: int | None = None
) -> list[tuple[Job, Receipt]]:
    """Captures prompts, all in flight at once or as many as given."""
    with Server(url) as client, ThreadPoolExecutor(num_in_flight or len(prompts)) as threads:
        spec = client.handshake().spec
        jobs = [job_of(spec.digest, ids) for ids in prompts]
        for job in jobs:  # a key that was captured before would only be replayed
            (dumps / dump_name(job.key)).unlink(missing_ok=True)
        return list(zip(jobs, threads.map(client.capture, jobs), strict=True))


def job_of(spec_digest: str, ids: list[int]) -> Job:
    return Job.of("r", spec_digest, Prompt(array("i", ids), ()))


def request_body(job: Job) -> dict[str, Any]:
    request = CaptureRequest(job.key, job.prompt.num_tokens, job.spec_digest)
    return {
        "rid": job.key,
        "input_ids": job.prompt.token_ids.tolist(),
        "sampling_params": {"max_new_tokens": 0, "custom_params": {FIELD: request.to_json()}},
    }


def generate(server: LocalServer, ids: list[int], max_new_tokens: int) -> dict[str, dict[str, int]]:
    body = {
        "input_ids": ids,
        "sampling_params": {
            "max_new_tokens": max_new_tokens,
            "ignore_eos": True,
            "temperature": 0,
        },
    }
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=60)
    answer.raise_for_status()
    result: dict[str, dict[str, int]] = answer.json()
    return result
