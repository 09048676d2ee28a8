"""Rows that SGLang's own ``return_hidden_states`` loses, and rows that statetap loses.

The same prompts go to two servers, one after the other: an unpatched SGLang with
``--enable-return-hidden-states``, and a patched one. Both have the same settings, which is checked,
and SGLang's defaults for everything that schedules. Prompts are sent once as they are, no two with
the same first token, and once behind a system prompt that all share.

Built-in, a request generates one token, because with none no states come back at all. The first
list in ``meta_info["hidden_states"]`` is of the prompt, and should hold a row for each of its
tokens. Ours counts the rows of a dump that has passed every check of a worker: each row was
computed from the token that the prompt has there.

    python benchmarks/builtin_rows.py [--prompts N]
"""

import argparse
import random
import sys
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from statetap_contract import Job, Prompt, StatetapError
from statetap_local.models import tiny_llama
from statetap_local.service import Service, free_port
from statetap_local.services import SERVER_ENVIRONMENT, LocalServer
from statetap_patch.cpu import PLATFORM_NAME
from statetap_worker.asking.server import Server
from statetap_worker.proving.dump import delete_dump, map_dump
from statetap_worker.proving.validate import prove_dump, prove_receipt

CACHE = Path(__file__).resolve().parents[1] / ".cache"
LOGS = CACHE / "logs"
NUM_IN_FLIGHT = 16
#: Tokens of a prompt, without the system prompt.
SHORTEST, LONGEST = 50, 1500
NUM_SYSTEM_TOKENS = 60
#: The tiny model's ids, less the two that begin and end a text.
TOKEN_IDS = range(2, 512)
#: What the two servers' infos may differ in: the ways themselves, names, and what each start draws.
MAY_DIFFER = {
    "enable_return_hidden_states",
    "enable_return_aux_hidden_states",
    "return_aux_hidden_state_layer_ids",
    "aux_hidden_state_capture",
    "served_model_name",
    "launch_command",
    "port",
    "random_seed",
    "startup_time",
    "internal_states",
}


@dataclass(frozen=True, slots=True)
class Tally:
    """What came back for a set of prompts."""

    num_prompts: int
    #: Prompts with fewer rows than tokens.
    num_short: int
    num_rows_missing: int
    num_rows_expected: int
    #: Requests that failed, and so brought no row.
    num_errors: int


@dataclass(frozen=True, slots=True)
class Way:
    """A running server, and how rows are had from it."""

    url: str
    #: Rows that come back for a prompt.
    count_rows: Callable[[Prompt], int]


def main() -> None:
    """Prints what each way lost; exits with 1 when ours lost a row or a request."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if not 0 < arguments.prompts <= len(TOKEN_IDS):
        parser.error(f"--prompts must be from 1 to {len(TOKEN_IDS)}: first tokens must differ")
    tallies = measure(arguments.prompts, arguments.seed)
    table = Table(
        title=f"prompts of {SHORTEST:,} to {LONGEST:,} tokens, {NUM_IN_FLIGHT} in flight, "
        f"seed {arguments.seed}"
    )
    for column in ("way", "system prompt", "requests", "short", "rows missing", "of", "errors"):
        table.add_column(column, justify="left" if column in ("way", "system prompt") else "right")
    for (way, system), tally in tallies.items():
        table.add_row(
            way,
            system,
            f"{tally.num_prompts:,}",
            f"{tally.num_short:,}",
            f"{tally.num_rows_missing:,}",
            f"{tally.num_rows_expected:,}",
            f"{tally.num_errors:,}",
        )
    Console().print(table)
    num_missing = sum(
        tally.num_rows_missing for (way, _), tally in tallies.items() if way == "statetap"
    )
    print(f"rows that statetap lost: {num_missing}; bound 0")
    sys.exit(1 if num_missing else 0)


def measure(num_prompts: int, seed: int) -> dict[tuple[str, str], Tally]:
    """What each way lost, by way (``built-in``, ``statetap``) and system prompt.

    Raises:
        SystemExit: the servers do not have the same settings.
    """
    generator = random.Random(seed)
    system_tokens = generator.choices(TOKEN_IDS, k=NUM_SYSTEM_TOKENS)
    prompt_sets = {
        "none": make_prompts(generator, num_prompts, []),
        "shared": make_prompts(generator, num_prompts, system_tokens),
    }
    model = tiny_llama(CACHE / "models")
    infos, tallies = [], {}
    for name, serve in (("built-in", serve_builtin), ("statetap", serve_statetap)):
        with serve(model) as way, httpx.Client(base_url=way.url, timeout=60) as http:
            infos.append(http.get("/server_info").raise_for_status().json())
            for system, prompts in prompt_sets.items():
                # Nothing of the other set, nor of the server's own warm-up, is in the prefix cache.
                http.post("/flush_cache", params={"timeout": 10}).raise_for_status()
                tallies[name, system] = tally_rows(way.count_rows, prompts)
    check_settings(*infos)
    return tallies


def make_prompts(
    generator: random.Random, num_prompts: int, system_tokens: list[int]
) -> list[Prompt]:
    """Random prompts that have nothing but the system prompt in common at their beginning."""
    prompts = []
    for first_token in generator.sample(TOKEN_IDS, num_prompts):
        num_others = generator.randint(SHORTEST, LONGEST) - 1
        others = generator.choices(TOKEN_IDS, k=num_others)
        prompts.append(Prompt(array("i", [*system_tokens, first_token, *others]), ()))
    return prompts


def tally_rows(count_rows: Callable[[Prompt], int], prompts: list[Prompt]) -> Tally:
    """Sends the prompts and counts what is missing."""

    def attempt(prompt: Prompt) -> int | None:
        try:
            return count_rows(prompt)
        except (httpx.HTTPError, LookupError, StatetapError) as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return None

    with ThreadPoolExecutor(NUM_IN_FLIGHT) as threads:
        found = list(threads.map(attempt, prompts))
    missing = [
        prompt.num_tokens - (num_rows or 0) for prompt, num_rows in zip(prompts, found, strict=True)
    ]
    return Tally(
        num_prompts=len(prompts),
        num_short=sum(num_rows > 0 for num_rows in missing),
        num_rows_missing=sum(missing),
        num_rows_expected=sum(prompt.num_tokens for prompt in prompts),
        num_errors=found.count(None),
    )


@contextmanager
def serve_builtin(model: Path) -> Iterator[Way]:
    """An unpatched server, asked for its own ``return_hidden_states``."""
    service = UnpatchedServer(model, LOGS / "builtin_rows-unpatched.log")
    try:
        with httpx.Client(base_url=service.url, timeout=300) as http:

            def count_rows(prompt: Prompt) -> int:
                body = {
                    "input_ids": prompt.token_ids.tolist(),
                    "sampling_params": {"max_new_tokens": 1},
                    "return_hidden_states": True,
                }
                answer = http.post("/generate", json=body).raise_for_status()
                return len(answer.json()["meta_info"]["hidden_states"][0])

            yield Way(service.url, count_rows)
    finally:
        service.stop()


@contextmanager
def serve_statetap(model: Path) -> Iterator[Way]:
    """A patched server, whose dumps are proven as a worker proves them."""
    with TemporaryDirectory(prefix="statetap-bench-", dir="/dev/shm") as folder:
        dumps = Path(folder)
        service = LocalServer(model, dumps, LOGS / "builtin_rows-patched.log")
        try:
            server = Server(service.url)
            spec = server.handshake().spec

            def count_rows(prompt: Prompt) -> int:
                job = Job.of("bench", spec.digest, prompt)
                receipt = server.capture(job)
                prove_receipt(receipt, job, spec)
                dump = map_dump(dumps, receipt)
                prove_dump(dump, receipt, job, spec)
                delete_dump(dumps, job.key)
                return len(dump.states)

            yield Way(service.url, count_rows)
        finally:
            service.stop()


class UnpatchedServer(Service):
    """SGLang as it is, on the CPU platform that ``LocalServer`` uses too."""

    def __init__(self, model: Path, log: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [
            str(SERVER_ENVIRONMENT / "bin" / "python"),
            "-m",
            "statetap_patch.serve",
            f"--model-path={model}",
            "--enable-return-hidden-states",
            f"--port={port}",
            # As the launcher has it.
            "--dtype=float32",
            "--device=cpu",
            "--attention-backend=torch_native",
            "--sleep-on-idle",
            "--skip-server-warmup",
            "--mem-fraction-static=0.5",
            "--max-total-tokens=32768",
        ]
        environment = {
            "SGLANG_PLATFORM": PLATFORM_NAME,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        super().__init__("the unpatched SGLang server", command, log, environment)
        self.wait_until(self.is_ready, timeout_s=180)

    def is_ready(self) -> bool:
        """Whether its model is loaded and warmed up."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False


def check_settings(builtin: dict[str, Any], statetap: dict[str, Any]) -> None:
    """Proves that two answers of ``/server_info`` differ in nothing that would be unfair.

    Raises:
        SystemExit: they do.
    """
    for name in sorted((builtin.keys() | statetap.keys()) - MAY_DIFFER):
        if builtin.get(name) != statetap.get(name):
            sys.exit(
                f"the unpatched server has {name} {builtin.get(name)}, the patched one "
                f"{statetap.get(name)}; give UnpatchedServer what statetap-sglang sets"
            )


if __name__ == "__main__":
    main()
