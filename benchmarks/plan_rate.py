"""How fast a plan is made: against the bare tokenizer on the same text, in turns.

The limit is the tokenizer: ``encode_batch`` over all cores, a thousand texts a call, ids taken as
lists. Its texts were rendered before, by transformers. The plan reads JSONL, renders, finds the
loss, tokenises, drops duplicates and writes Parquet. Rates are taken from the first batch on: the
start of processes, seconds whatever the dataset, is shown apart. The memory of the planning process
is read after a tenth of the rows and at the end.

    python benchmarks/plan_rate.py [--rows N] [--tokens N] [--rounds N] [--seed N]
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table
from statetap_local.models import smollm2
from statetap_producer.planning.make_plan import PlanRequest, make_plan
from statetap_producer.planning.settle_spec import SpecWish
from statetap_producer.planning.tokenise import BATCH_ROWS
from statetap_producer.run.run_folder import RunFolder
from transformers import AutoTokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLE = REPOSITORY / "examples" / "data" / "conversations.jsonl"

#: The plan may take this part of the bare tokenizer's rate.
BOUND = 0.8
#: The example's words have so many tokens each, with this tokenizer.
TOKENS_A_WORD = 2.15
#: Texts a call of the bare tokenizer.
CALL_TEXTS = 1000

Turns = list[dict[str, str]]


@dataclass(frozen=True)
class Measured:
    """One plan."""

    rows_per_s: float
    start_s: float
    tokens_a_row: float
    #: Resident bytes of the planning process after a tenth of the rows and at the end.
    early_bytes: int
    late_bytes: int


def main() -> int:
    """Prints the figures; 1 when the plan is slower than its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--tokens", type=int, default=500, help="of a row, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    model = smollm2(REPOSITORY / ".cache" / "models")
    table = Table(title=f"planning {arguments.rows:,} rows")
    for column in ("round", "tokens a row", "bare rows/s", "plan rows/s", "plan / bare", "start"):
        table.add_column(column, justify="right")
    ratios = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = folder / "rows.jsonl"
        write_rows(dataset, arguments.rows, arguments.tokens, arguments.seed)
        for number in range(arguments.rounds):
            bare, planned = one_round(number, dataset, arguments.rows, model, folder)
            ratios.append(planned.rows_per_s / bare)
            table.add_row(
                f"{number + 1}",
                f"{planned.tokens_a_row:,.0f}",
                f"{bare:,.0f}",
                f"{planned.rows_per_s:,.0f}",
                f"{ratios[-1]:.3f}",
                f"{planned.start_s:.1f} s",
            )
    console = Console()
    console.print(table)
    growth = planned.late_bytes - planned.early_bytes
    console.print(
        f"memory of the planning process: {planned.early_bytes / 1e6:,.0f} MB after a tenth of the "
        f"rows, {planned.late_bytes / 1e6:,.0f} MB at the end, "
        f"{growth / (0.9 * arguments.rows):,.0f} bytes a row"
    )
    ratio = statistics.median(ratios)
    console.print(f"seed {arguments.seed}: {ratio:.3f} of the bare tokenizer, bound {BOUND}")
    return 0 if ratio >= BOUND else 1


def write_rows(path: Path, num_rows: int, num_tokens: int, seed: int) -> None:
    """Conversations of one turn each, cut at random from the example's, all different."""
    with path.open("w") as stream:
        for turns in conversations(num_rows, num_tokens, seed):
            stream.write(json.dumps({"messages": turns}) + "\n")


def conversations(num_rows: int, num_tokens: int, seed: int) -> Iterator[Turns]:
    """Of about ``num_tokens`` tokens, a quarter of it the question."""
    words = [word for line in EXAMPLE.open() for text in _texts(line) for word in text.split(" ")]
    num_words = max(4, int(num_tokens / TOKENS_A_WORD))
    source = random.Random(seed)
    for number in range(num_rows):
        start = source.randrange(len(words) - num_words)
        cut = start + num_words // 4
        yield [
            {"role": "user", "content": f"{number}: " + " ".join(words[start:cut])},
            {"role": "assistant", "content": " ".join(words[cut : start + num_words])},
        ]


def one_round(
    number: int, dataset: Path, num_rows: int, model: Path, folder: Path
) -> tuple[float, Measured]:
    """Bare rows/s and the plan, in changing order."""
    if number % 2:
        planned = measure_plan(dataset, num_rows, model, folder / f"run-{number}")
        return measure_bare(dataset, model), planned
    bare = measure_bare(dataset, model)
    return bare, measure_plan(dataset, num_rows, model, folder / f"run-{number}")


def measure_bare(dataset: Path, model: Path) -> float:
    """Rows/s of the tokenizer alone."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    bare = tokenizer.backend_tokenizer
    spent, num_rows = 0.0, 0
    with dataset.open() as stream:
        while lines := list(islice(stream, CALL_TEXTS)):
            chats = [json.loads(line)["messages"] for line in lines]
            texts = tokenizer.apply_chat_template(chats, tokenize=False)
            begun = time.perf_counter()
            ids = [e.ids for e in bare.encode_batch(texts, add_special_tokens=False)]
            spent += time.perf_counter() - begun
            num_rows += len(ids)
    return num_rows / spent


def measure_plan(dataset: Path, num_rows: int, model: Path, run: Path) -> Measured:
    """One plan of the dataset."""
    process = psutil.Process()
    seen: list[tuple[float, int]] = []

    def look(done: int, total: int) -> None:
        if not seen or (len(seen) == 1 and done >= total / 10):
            seen.append((time.perf_counter(), process.memory_info().rss))

    request = PlanRequest(dataset, RunFolder(run), model, SpecWish(), is_elsewhere=True)
    begun = time.perf_counter()
    record = make_plan(request, look).record
    ended = time.perf_counter()
    first_at, _ = seen[0]
    # Each process has tokenised a batch by then, at most.
    num_before = len(os.sched_getaffinity(0)) * BATCH_ROWS
    return Measured(
        rows_per_s=(num_rows - num_before) / (ended - first_at),
        start_s=first_at - begun,
        tokens_a_row=record.counts.num_tokens / record.counts.num_planned,
        early_bytes=seen[-1][1],
        late_bytes=process.memory_info().rss,
    )


def _texts(line: str) -> list[str]:
    return [turn["content"] for turn in json.loads(line)["conversations"]]


if __name__ == "__main__":
    sys.exit(main())
