"""What filling the queue costs: prompts/s, bytes of Redis a prompt, memory of the producer.

A plan of prompts with ids as frequent as those of text is enqueued into a real Redis, with the
window on and something that takes messages off the queue as fast as they come. Rounds of some
thousand prompts alternate with the same messages' bytes through plain redis-py pipelines, which is
what any producer would have to pay.

    python benchmarks/enqueue_rate.py [--rows N] [--tokens N] [--folder DIR]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import redis
from rich.console import Console
from rich.table import Table
from statetap_contract import CaptureSpec, Job, Prompt, queue_name
from statetap_local.made_runs import keyed, write_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing.enqueue import enqueue
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.feed import FeedProgress
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder

SPEC = CaptureSpec("bench", "none", (1,), "post", 16, "bfloat16")
QUEUE = queue_name(SPEC.digest)

VOCABULARY = 49_152
WINDOW = 10_000
ROUNDS = 5
ROUND_ROWS = 10_000
BATCH = 1000

#: Prompts a second, at least.
RATE_BOUND = 5_000
#: Memory of the producer at the end, at most, as a multiple of that after a tenth.
MEMORY_BOUND = 1.1


def main() -> int:
    """Prints the figures; 1 when one misses its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        with redis_at(folder) as url:
            alternated = alternate(folder, url, ROUND_ROWS, arguments.tokens, ROUNDS)
            num_bytes = bytes_a_prompt(RunFolder(folder / "small"), url)
            large = text_like_run(folder / "large", arguments.rows, arguments.tokens)
            figures = feed_all(large, url)
    return show(arguments, alternated, num_bytes, figures)


def show(
    arguments: argparse.Namespace,
    alternated: list[tuple[float, float]],
    num_bytes: float,
    figures: "Figures",
) -> int:
    """Prints the table, and gives the exit code."""
    rate = arguments.rows / figures.seconds
    growth = figures.end_bytes / figures.tenth_bytes
    table = Table(title=f"enqueue, prompts of {arguments.tokens:,} tokens")
    for column in ("", "figure", "bound"):
        table.add_column(column, justify="right" if column else "left")
    ours = statistics.median(rate for rate, _ in alternated)
    bare = statistics.median(rate for _, rate in alternated)
    ratios = [rate / other for rate, other in alternated]
    part = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    for row in (
        (f"{arguments.rows:,} prompts, window {WINDOW:,}", f"{rate:,.0f}/s", f"{RATE_BOUND:,}/s"),
        (f"{ROUND_ROWS:,} prompts, median of {ROUNDS}", f"{ours:,.0f}/s", ""),
        ("the same bytes through redis-py pipelines", f"{bare:,.0f}/s", ""),
        ("part of that rate", part, ""),
        ("memory of Redis a prompt", f"{num_bytes:,.0f} B", ""),
        ("memory of the producer after a tenth", f"{figures.tenth_bytes / 1e6:.0f} MB", ""),
        ("  at the end, times that", f"{growth:.2f}", f"{MEMORY_BOUND:.2f}"),
        ("longest queue seen", f"{figures.most_waiting:,}", f"{WINDOW:,}"),
    ):
        table.add_row(*row)
    Console().print(table)
    is_good = rate >= RATE_BOUND and growth <= MEMORY_BOUND and figures.most_waiting <= WINDOW
    print("all within their bounds" if is_good else "a figure misses its bound")
    return 0 if is_good else 1


def text_like(num_ids: int) -> npt.NDArray[np.int32]:
    """Ids that are as frequent as those of text: the k-th most frequent one about 1 / k."""
    rng = np.random.default_rng(1)
    weights = 1 / (np.arange(VOCABULARY) + 2.7)
    ids = np.searchsorted(np.cumsum(weights) / weights.sum(), rng.random(num_ids))
    # Frequent ids are not the small ones alone.
    return rng.permutation(VOCABULARY)[ids].astype(np.int32)


def text_like_prompts(num_rows: int, num_tokens: int) -> Iterator[tuple[str, Prompt]]:
    """Keys and prompts, all different, cut from one long text at places that look drawn."""
    text = text_like(max(1_000_000, 2 * num_tokens))
    for number in range(num_rows):
        start = number * 7919 % (len(text) - num_tokens)
        ids = array("i", text[start : start + num_tokens].tobytes())
        ids[0], ids[-1] = divmod(number, VOCABULARY)
        yield keyed(SPEC, Prompt(ids, ((num_tokens // 2, num_tokens),)))


def text_like_run(folder: Path, num_rows: int, num_tokens: int) -> RunFolder:
    """A planned run of them."""
    return write_run(folder, SPEC, text_like_prompts(num_rows, num_tokens))


@contextmanager
def redis_at(folder: Path) -> Iterator[str]:
    """A Redis with the project's settings; gives its URL."""
    service = LocalRedis(folder / "redis", folder / "redis.log", "no-secret")
    try:
        yield service.url
    finally:
        service.stop()


def alternate(
    folder: Path, url: str, num_rows: int, num_tokens: int, rounds: int
) -> list[tuple[float, float]]:
    """Prompts a second by ``enqueue``, and by plain pipelines of the same bytes, in turns."""
    run = text_like_run(folder / "small", num_rows, num_tokens)
    inputs = run.read_record().inputs
    digests = inputs.tokenizer_digest, inputs.template_digest
    envelope = Envelope(SPEC.digest)
    rows = Plan(run.plan_file, num_rows).rows()
    jobs = (Job(row.key, run.name, SPEC.digest, row.prompt, *digests) for row in rows)
    messages = [envelope.wrap(job) for job in jobs]
    found = []
    for number in range(rounds):
        seconds = {}
        for is_ours in (True, False) if number % 2 else (False, True):
            with redis.Redis.from_url(url) as client:
                # Not all of Redis: that would be a wipe, after which workers are waited for.
                client.delete(QUEUE)
            begun = time.perf_counter()
            if is_ours:
                enqueue(run, url, window=0)
            else:
                send_bare(url, messages)
            seconds[is_ours] = time.perf_counter() - begun
        found.append((num_rows / seconds[True], num_rows / seconds[False]))
    return found


def send_bare(url: str, messages: list[bytes]) -> None:
    """Messages through redis-py pipelines."""
    with redis.Redis.from_url(url) as client:
        for start in range(0, len(messages), BATCH):
            with client.pipeline(transaction=False) as pipeline:
                for message in messages[start : start + BATCH]:
                    pipeline.lpush(QUEUE, message)
                pipeline.execute()


def bytes_a_prompt(run: RunFolder, url: str) -> float:
    """Memory that Redis takes for a queued prompt."""
    with redis.Redis.from_url(url) as client:
        client.delete(QUEUE)
        outcome = enqueue(run, url, window=0)
        num_bytes = client.memory_usage(QUEUE, samples=0)
        client.delete(QUEUE)
    return (num_bytes or 0) / outcome.num_enqueued


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one call of ``enqueue``."""

    seconds: float
    #: Memory of its process after a tenth of the prompts, and after all.
    tenth_bytes: int
    end_bytes: int
    most_waiting: int


def feed_all(run: RunFolder, url: str) -> Figures:
    """Enqueues a run in a process of its own, and drains the queue as fast as it fills."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import enqueue_rate;"
        "enqueue_rate.enqueue_measured(*sys.argv[2:])"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(run.path), url]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as producer,  # noqa: S603
        redis.Redis.from_url(url) as client,
    ):
        while producer.poll() is None:
            # The tail holds the oldest; a trim sends no message anywhere.
            client.ltrim(QUEUE, 0, WINDOW // 2)
            time.sleep(0.005)
        printed, _ = producer.communicate()
    return Figures(**json.loads(printed))


def enqueue_measured(folder: str, url: str) -> None:
    """Enqueues a run, looks at this process's memory meanwhile, and prints the figures."""
    run = RunFolder(Path(folder))
    num_planned = run.read_record().counts.num_planned
    process = psutil.Process()
    tenth_bytes = most_waiting = 0

    def note(now: FeedProgress) -> None:
        nonlocal tenth_bytes, most_waiting
        most_waiting = max(most_waiting, now.num_waiting)
        if not tenth_bytes and now.num_enqueued >= num_planned / 10:
            tenth_bytes = process.memory_info().rss

    begun = time.perf_counter()
    enqueue(run, url, window=WINDOW, on_progress=note)
    seconds = time.perf_counter() - begun
    figures = Figures(seconds, tenth_bytes, process.memory_info().rss, most_waiting)
    print(json.dumps(asdict(figures)))


if __name__ == "__main__":
    sys.exit(main())
