"""What capture costs: tokens/s of one server with capture on against off.

The limit is the server's bare prefill rate: the same prompts, the same client, nothing captured.
Both sides run on one server in alternating rounds with prompts that no cache has seen, so that
noise hits both alike; the figure is the median of the rounds' ratios.

    python benchmarks/capture_overhead.py [--model tiny|smollm2] [--rounds N]
"""

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table
from statetap_contract import FIELD, CaptureRequest, Job, Prompt, agreed_capture, dump_name
from statetap_local.models import smollm2, tiny_llama
from statetap_local.random_prompts import random_prompt
from statetap_local.services import LocalServer

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_IN_FLIGHT = 8
#: Prompts and tokens of one round: a few seconds of prefill on two cores.
SIZES = {"tiny": (96, 500), "smollm2": (12, 300)}
#: Least median ratio. The tiny model computes so little that copying its rows shows.
BOUNDS = {"tiny": 0.85, "smollm2": 0.95}


def main() -> None:
    """Measures one model, or both; exits with 1 when a ratio is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=sorted(SIZES), action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = Table(title=f"capture on against off, {NUM_IN_FLIGHT} in flight, seed {arguments.seed}")
    for column in ("model", "off, tokens/s", "on, tokens/s", "ratio, median", "bound", "ratios"):
        table.add_column(column, justify="left" if column == "model" else "right")
    is_missed = False
    for name in arguments.model or sorted(SIZES, reverse=True):
        off, on = measure(name, arguments.rounds, random.Random(arguments.seed))
        ratios = sorted(with_capture / bare for bare, with_capture in zip(off, on, strict=True))
        ratio = statistics.median(ratios)
        is_missed |= ratio < BOUNDS[name]
        table.add_row(
            name,
            f"{statistics.median(off):,.0f}",
            f"{statistics.median(on):,.0f}",
            f"{ratio:.3f}",
            f"{BOUNDS[name]:.2f}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        )
    Console().print(table)
    sys.exit(1 if is_missed else 0)


def measure(
    name: str, num_rounds: int, generator: random.Random
) -> tuple[list[float], list[float]]:
    """Tokens/s of each round, off and on."""
    model = {"tiny": tiny_llama, "smollm2": smollm2}[name](REPOSITORY / ".cache" / "models")
    num_prompts, num_tokens = SIZES[name]
    dumps = Path(tempfile.mkdtemp(prefix="statetap-bench-", dir="/dev/shm"))
    logs = Path(tempfile.mkdtemp(prefix="statetap-bench-"))
    num_threads = 1 if name == "tiny" else os.cpu_count() or 1
    server = LocalServer(model, dumps, logs / "server.log", num_threads=num_threads)
    rates: dict[bool, list[float]] = {False: [], True: []}
    try:
        with httpx.Client(base_url=server.url, timeout=300) as client:
            capture = agreed_capture(client.get("/server_info").json(), server.url)
            for number in range(num_rounds + 1):
                # Whoever comes first in a round would have an advantage, or not: take turns.
                for is_captured in (True, False) if number % 2 else (False, True):
                    prompts = [
                        random_prompt(generator, num_tokens, capture.vocab_size)
                        for _ in range(num_prompts)
                    ]
                    rate = run_round(client, dumps, capture.spec.digest, prompts, is_captured)
                    if number:  # the first one warms up
                        rates[is_captured].append(rate)
    finally:
        server.stop()
        shutil.rmtree(dumps)
        shutil.rmtree(logs)
    return rates[False], rates[True]


def run_round(
    client: httpx.Client, dumps: Path, spec_digest: str, prompts: list[Prompt], is_captured: bool
) -> float:
    """Sends the prompts; tokens/s from the first request to the last answer."""

    def send(prompt: Prompt) -> None:
        job = Job.of("bench", spec_digest, prompt)
        parameters: dict[str, object] = {"max_new_tokens": 0}
        if is_captured:
            request = CaptureRequest(job.key, prompt.num_tokens, spec_digest)
            parameters["custom_params"] = {FIELD: request.to_json()}
        body = {
            "rid": job.key,
            "input_ids": prompt.token_ids.tolist(),
            "sampling_params": parameters,
        }
        answer = client.post("/generate", json=body)
        answer.raise_for_status()
        if is_captured:
            (dumps / dump_name(job.key)).unlink()

    begun = time.monotonic()
    with ThreadPoolExecutor(NUM_IN_FLIGHT) as threads:
        list(threads.map(send, prompts))
    return sum(prompt.num_tokens for prompt in prompts) / (time.monotonic() - begun)


if __name__ == "__main__":
    main()
