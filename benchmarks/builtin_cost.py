"""What it costs to get states back: SGLang's own ``return_hidden_states`` against statetap.

One server answers three kinds of request in turn, one at a time: bare prefill, which returns
nothing; the built-in way, a JSON list of floats, read into a float32 array; and ours, a dump that
is mapped, proven as a worker proves it, and deleted. The server computes the aux layers for every
request, so that bare prefill includes them. A way's cost is its time less the bare time of the same
round. The client's side is included; every prompt is new to the server's prefix cache.

The built-in way brings the aux slots alone, ours these and the last hidden state. Ours generates no
token and the others one, which comes out of the prefill and takes no pass of its own.

    python benchmarks/builtin_cost.py [--rounds N]
"""

import argparse
import os
import random
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from statetap_contract import CaptureSpec, Job, Prompt
from statetap_local.models import wide_llama
from statetap_local.services import LocalServer
from statetap_worker.asking.exchange import Peer, WholeAnswer
from statetap_worker.asking.server import Server
from statetap_worker.proving.dump import delete_dump, map_dump
from statetap_worker.proving.validate import prove_dump, prove_receipt

CACHE = Path(__file__).resolve().parents[1] / ".cache"
WAYS = ("bare", "built-in", "statetap")
#: The built-in way must cost this many times as much as ours.
BOUND = 20
#: Tokens of a prompt; the server computes as many in one chunk, so that built-in no row is lost.
NUM_TOKENS = 2000
#: The model's ids, less the two that begin and end a text.
TOKEN_IDS = range(2, 512)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request took."""

    #: From the request to the end of what the client does with the answer.
    total_s: float
    #: The client's part: from the answer to states that can be used.
    client_s: float
    #: Size of the answer's body.
    num_bytes: int


def main() -> None:
    """Prints the costs; exits with 1 when the built-in way costs less than the bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    spec, rounds = measure(arguments.rounds, random.Random(arguments.seed))
    num_slots = {"bare": 0, "built-in": len(spec.layers), "statetap": spec.num_slots}
    table = Table(
        title=f"{NUM_TOKENS:,} tokens a prompt, a slot of {spec.hidden_size:,} {spec.dtype}, "
        f"medians of {arguments.rounds} rounds, seed {arguments.seed}"
    )
    columns = ("way", "slots", "time, s", "client, s", "added, s", "min to max", "HTTP, MB")
    for column in columns:
        table.add_column(column, justify="left" if column == "way" else "right")
    added, client = {}, {}
    for way in WAYS:
        costs = [costs[way] for costs in rounds]
        differences = [costs[way].total_s - costs["bare"].total_s for costs in rounds]
        added[way] = statistics.median(differences)
        client[way] = statistics.median(cost.client_s for cost in costs)
        table.add_row(
            way,
            str(num_slots[way]),
            f"{statistics.median(cost.total_s for cost in costs):.3f}",
            f"{client[way]:.3f}",
            f"{added[way]:.3f}",
            f"{min(differences):.2f} to {max(differences):.2f}",
            f"{statistics.median(cost.num_bytes for cost in costs) / 1e6:.3f}",
        )
    Console().print(table)
    # The client's part is no prefill: noise in the bare times cannot take it away.
    ratio = added["built-in"] / max(added["statetap"], client["statetap"])
    print(f"the built-in way costs {ratio:.0f} times as much as statetap; bound {BOUND}")
    sys.exit(0 if ratio >= BOUND else 1)


def measure(num_rounds: int, generator: random.Random) -> tuple[CaptureSpec, list[dict[str, Cost]]]:
    """The server's capture spec, and the cost of each way in each round."""
    model = wide_llama(CACHE / "models")
    with TemporaryDirectory(prefix="statetap-bench-", dir="/dev/shm") as dumps, ExitStack() as end:
        service = LocalServer(
            model,
            Path(dumps),
            CACHE / "logs" / "builtin_cost.log",
            num_threads=os.cpu_count() or 1,
            arguments=["--enable-return-hidden-states"],
        )
        end.callback(service.stop)
        http = httpx.Client(base_url=service.url, timeout=300, trust_env=False)
        end.enter_context(http)
        peer = CountingPeer(service.url)
        server = Server(service.url, peer)
        spec = server.handshake().spec
        send: dict[str, Callable[[Prompt], Cost]] = {
            "bare": lambda prompt: send_bare(http, prompt),
            "built-in": lambda prompt: send_builtin(http, prompt, spec),
            "statetap": lambda prompt: send_capture(server, peer, Path(dumps), prompt, spec),
        }
        rounds = []
        for number in range(num_rounds + 1):
            # Whoever comes after a certain other could have an advantage: take turns.
            first = number % len(WAYS)
            order = [*WAYS[first:], *WAYS[:first]]
            http.post("/flush_cache", params={"timeout": 10}).raise_for_status()
            prompts = make_prompts(generator, len(order))
            costs = {way: send[way](prompt) for way, prompt in zip(order, prompts, strict=True)}
            if number:  # the first one warms up
                rounds.append(costs)
    return spec, rounds


def make_prompts(generator: random.Random, num_prompts: int) -> list[Prompt]:
    """Random prompts with different first tokens: the prefix cache has no part of any."""
    return [
        Prompt(array("i", [first_token, *generator.choices(TOKEN_IDS, k=NUM_TOKENS - 1)]), ())
        for first_token in generator.sample(TOKEN_IDS, num_prompts)
    ]


def send_bare(http: httpx.Client, prompt: Prompt) -> Cost:
    """Prefill with nothing returned."""
    begun = time.perf_counter()
    answer = generate(http, prompt, {})
    answered = time.perf_counter()
    answer.json()
    done = time.perf_counter()
    return Cost(done - begun, done - answered, len(answer.content))


def send_builtin(http: httpx.Client, prompt: Prompt, spec: CaptureSpec) -> Cost:
    """Prefill whose states come back as JSON.

    Raises:
        SystemExit: the answer does not hold one row for each token, or rows of another width.
    """
    begun = time.perf_counter()
    answer = generate(http, prompt, {"return_hidden_states": True})
    answered = time.perf_counter()
    # A list for each generated token; the first is of the prompt, and holds its rows.
    states = np.array(answer.json()["meta_info"]["hidden_states"][0], np.float32)
    done = time.perf_counter()
    expected = (prompt.num_tokens, len(spec.layers) * spec.hidden_size)
    if states.shape != expected:
        sys.exit(f"the built-in way brought states of shape {states.shape}, not {expected}")
    return Cost(done - begun, done - answered, len(answer.content))


def send_capture(
    server: Server, peer: "CountingPeer", dumps: Path, prompt: Prompt, spec: CaptureSpec
) -> Cost:
    """Prefill whose states are dumped, mapped, proven and deleted."""
    begun = time.perf_counter()
    job = Job.of("bench", spec.digest, prompt)
    receipt = server.capture(job)
    answered = time.perf_counter()
    prove_receipt(receipt, job, spec)
    prove_dump(map_dump(dumps, receipt), receipt, job, spec)
    delete_dump(dumps, job.key)
    done = time.perf_counter()
    return Cost(done - begun, done - answered, peer.num_bytes)


def generate(http: httpx.Client, prompt: Prompt, options: dict[str, Any]) -> httpx.Response:
    """A success answer. One token is generated: with none, the built-in way brings no states."""
    body = {"input_ids": prompt.token_ids.tolist(), "sampling_params": {"max_new_tokens": 1}}
    answer = http.post("/generate", json=body | options)
    answer.raise_for_status()
    return answer


class CountingPeer(Peer):
    """Keeps the size of the last answer's body, in bytes."""

    num_bytes = 0

    def exchange(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float
    ) -> WholeAnswer:
        answer = super().exchange(method, path, body, timeout_s=timeout_s)
        self.num_bytes = len(answer.body)
        return answer


if __name__ == "__main__":
    main()
