"""What the whole way costs: tokens/s of worker and server against a bare client of that server.

The worker takes prompts from Redis, extracts, proves, commits and acknowledges them. The bare
client has the same server compute as many prompts of the same lengths and throws the answers away;
it is a process of its own, with as many requests in flight. The sides take turns with prompts that
no cache has seen, and the figure is the median of the rounds' ratios.

    python benchmarks/end_to_end.py [--rounds N] [--prompts N] [--folder DIR]
"""

import argparse
import os
import random
import signal
import statistics
import sys
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table
from statetap_local.bare_client import send_bare
from statetap_local.measured_worker import MeasuredWorker
from statetap_local.models import smollm2
from statetap_local.random_prompts import random_prompt

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_IN_FLIGHT = 8
#: Shortest and longest prompt.
LENGTHS = 100, 900
#: Least median ratio.
BOUND = 0.90
#: Seconds for one side of a round, at most.
PATIENCE_S = 1200.0


def main() -> int:
    """Prints the figures; 1 when the ratio is below its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=40, help="of each side of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where shards are written")
    arguments = parser.parse_args()
    # A polite kill must stop the services too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rates = measure(
        smollm2(REPOSITORY / ".cache" / "models"),
        num_threads=os.cpu_count() or 1,
        num_rounds=arguments.rounds,
        num_prompts=arguments.prompts,
        seed=arguments.seed,
        folder=arguments.folder,
    )
    return show(rates, arguments.seed)


def show(rates: list[tuple[float, float]], seed: int) -> int:
    """Prints the table, and gives the exit code."""
    ratios = [ours / bare for ours, bare in rates]
    ratio = statistics.median(ratios)
    table = Table(title=f"SmolLM2-135M, {NUM_IN_FLIGHT} in flight, seed {seed}")
    for column in ("bare, tokens/s", "statetap, tokens/s", "ratio, median", "bound", "ratios"):
        table.add_column(column, justify="right")
    table.add_row(
        f"{statistics.median(bare for _, bare in rates):,.0f}",
        f"{statistics.median(ours for ours, _ in rates):,.0f}",
        f"{ratio:.3f}",
        f"{BOUND:.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    )
    Console().print(table)
    print(f"load of the machine over the last minutes: {os.getloadavg()[1]:.1f}")
    return 0 if ratio >= BOUND else 1


def measure(
    model: Path,
    *,
    num_threads: int,
    num_rounds: int,
    num_prompts: int,
    seed: int,
    folder: Path | None = None,
) -> list[tuple[float, float]]:
    """Tokens/s of each round: through statetap, and by the bare client."""
    generator = random.Random(seed)
    rates = []
    with MeasuredWorker(
        model, num_processes=NUM_IN_FLIGHT, num_threads=num_threads, folder=folder
    ) as worker:
        for number in range(num_rounds + 1):
            lengths = [generator.randint(*LENGTHS) for _ in range(num_prompts)]
            seconds = {}
            # Whoever comes first in a round would have an advantage, or not: take turns.
            for is_ours in (True, False) if number % 2 else (False, True):
                prompts = [
                    random_prompt(generator, length, worker.capture.vocab_size)
                    for length in lengths
                ]
                httpx.post(f"{worker.server.url}/flush_cache").raise_for_status()
                if is_ours:
                    # After a rest, each process shakes hands anew, which in a run it does once.
                    short = [
                        random_prompt(generator, 8, worker.capture.vocab_size)
                        for _ in range(2 * NUM_IN_FLIGHT)
                    ]
                    worker.extract(f"awake-{number}", short, PATIENCE_S)
                    seconds[True] = worker.extract(f"round-{number}", prompts, PATIENCE_S)
                else:
                    seconds[False] = send_bare(worker.server.url, prompts, NUM_IN_FLIGHT)
            if number:  # the first one warms up
                num_tokens = sum(lengths)
                rates.append((num_tokens / seconds[True], num_tokens / seconds[False]))
    return rates


if __name__ == "__main__":
    sys.exit(main())
