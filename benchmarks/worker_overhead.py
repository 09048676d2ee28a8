"""What a worker adds to its server's answer: milliseconds a sample, commit included.

A worker of one process works off a full queue. Its own events say when it had a message, when the
sample was committed, its dump deleted and its process done with it, and how long it waited in
between for the answer, from opening a connection to the last byte. The bound is on that time less
that wait. The acknowledgement follows; Redis says when it had it. Index rows say how long it took
from one sample to the next, which also covers how the worker comes by the next message.

What the server alone takes is measured in turns with it, on the same server: the same kind of
capture request through a bare socket that stays open, its bytes made beforehand, nothing done with
the answer, and with a rest before each, for a server that rested answers later. What the worker
takes more than that includes its HTTP client and a new connection for each prompt. A disk takes its
time too: ``--folder`` says which.

    python benchmarks/worker_overhead.py [--rounds N] [--samples N] [--folder DIR]
"""

import argparse
import ast
import json
import os
import queue
import random
import signal
import socket
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from rich.console import Console
from rich.table import Table
from statetap_contract import FIELD, CaptureRequest, Job, Prompt, dump_name
from statetap_contract.transport import TAKEN_PATTERN
from statetap_local.measured_worker import MeasuredWorker
from statetap_local.models import tiny_llama
from statetap_local.random_prompts import random_prompt
from statetap_local.services import LocalRedis

REPOSITORY = Path(__file__).resolve().parents[1]
NUM_TOKENS = 500
#: Milliseconds of a sample outside the server's answer, at most.
BOUND_MS = 3.0
#: Seconds that a worker leaves its server without a prompt, about.
REST_S = 0.004
#: Seconds for one side of a round, at most.
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Round:
    """Medians over the samples of one round, in milliseconds."""

    #: From a message that the worker has until its process is done with it.
    message_ms: float
    #: Of that, the wait for the server's answer.
    answer_ms: float
    #: Of that, everything else.
    own_ms: float
    #: From then until Redis has the acknowledgement, and has told that.
    acknowledgement_ms: float
    #: From one sample of the worker to its next.
    cycle_ms: float
    #: From a request through a bare socket to the end of its answer.
    bare_ms: float


def main() -> int:
    """Prints the figures; 1 when the worker takes longer than its bound."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=100, help="of each side of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where shards are written")
    arguments = parser.parse_args()
    # A polite kill must stop the services too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rounds = measure(
        num_rounds=arguments.rounds,
        num_samples=arguments.samples,
        seed=arguments.seed,
        folder=arguments.folder,
    )
    return show(rounds, arguments.seed)


def show(rounds: list[Round], seed: int) -> int:
    """Prints the table, and gives the exit code."""
    own_ms = [a_round.own_ms for a_round in rounds]
    median_ms = statistics.median(own_ms)
    table = Table(title=f"tiny model, {NUM_TOKENS} tokens, one in flight, seed {seed}; medians, ms")
    for column in ("", "ms", "bound"):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (
        ("from one sample to the next", [a_round.cycle_ms for a_round in rounds]),
        ("from a message until it is done", [a_round.message_ms for a_round in rounds]),
        ("  of that the server's answer", [a_round.answer_ms for a_round in rounds]),
    ):
        table.add_row(name, f"{statistics.median(values):.2f}", "")
    table.add_row("  of that the worker's own", f"{median_ms:.2f}", f"{BOUND_MS:.2f}")
    table.add_row("    in the rounds", f"{min(own_ms):.2f} to {max(own_ms):.2f}", "")
    acknowledgement_ms = statistics.median(a_round.acknowledgement_ms for a_round in rounds)
    table.add_row("from then to its acknowledgement", f"{acknowledgement_ms:.2f}", "")
    bare_ms = statistics.median(a_round.bare_ms for a_round in rounds)
    more_ms = statistics.median(a_round.message_ms - a_round.bare_ms for a_round in rounds)
    table.add_row("answer to a bare socket that stays open", f"{bare_ms:.2f}", "")
    table.add_row("  a message takes more than that", f"{more_ms:.2f}", "")
    Console().print(table)
    print(f"load of the machine over the last minutes: {os.getloadavg()[1]:.1f}")
    return 0 if median_ms <= BOUND_MS else 1


def measure(
    *, num_rounds: int, num_samples: int, seed: int, folder: Path | None = None
) -> list[Round]:
    """Alternates worker and bare socket; a round of each to warm up is left out."""
    generator = random.Random(seed)
    model = tiny_llama(REPOSITORY / ".cache" / "models")
    rounds = []
    with (
        MeasuredWorker(model, num_processes=1, folder=folder) as worker,
        TaskEvents(worker.redis) as events,
    ):
        for number in range(num_rounds + 1):
            ours, others = (
                [
                    random_prompt(generator, NUM_TOKENS, worker.capture.vocab_size)
                    for _ in range(num_samples)
                ]
                for _ in range(2)
            )
            # Whoever comes first in a round would have an advantage, or not: take turns.
            if number % 2:
                bare_ms = bare_median_ms(worker, others)
                handled, cycle_ms = handled_by(worker, events, number, ours)
            else:
                handled, cycle_ms = handled_by(worker, events, number, ours)
                bare_ms = bare_median_ms(worker, others)
            if number:
                rounds.append(
                    Round(
                        statistics.median(one.message_ms for one in handled),
                        statistics.median(one.answer_ms for one in handled),
                        statistics.median(one.own_ms for one in handled),
                        statistics.median(one.acknowledgement_ms for one in handled),
                        cycle_ms,
                        bare_ms,
                    )
                )
    return rounds


@dataclass(frozen=True, slots=True)
class Handled:
    """One message, in milliseconds."""

    #: From having it until its process is done with it, as the worker says.
    message_ms: float
    #: Of that, the wait for the server's answer.
    answer_ms: float
    #: From then until Redis has the acknowledgement, and has told that.
    acknowledgement_ms: float

    @property
    def own_ms(self) -> float:
        """Of that, everything else."""
        return self.message_ms - self.answer_ms


def handled_by(
    worker: MeasuredWorker, events: "TaskEvents", number: int, prompts: list[Prompt]
) -> tuple[list[Handled], float]:
    """Has the worker extract the prompts.

    Returns:
        What it says of each, and the median time from one sample to the next in milliseconds.
    """
    run = f"round-{number}"
    worker.extract(run, prompts, PATIENCE_S)
    cycle_ms = float(np.median(np.diff(worker.written_ns(run)))) / 1e6
    return events.handled(len(prompts)), cycle_ms


class TaskEvents:
    """What Celery says in Redis of each message, kept as it comes and read afterwards."""

    def __init__(self, local_redis: LocalRedis) -> None:
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._acknowledged_s: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._client = local_redis.client()
        # Redis says what became of hashes, hence of the one with what the worker has taken.
        self._client.config_set("notify-keyspace-events", "Kh")
        pubsub = self._client.pubsub()  # type: ignore[no-untyped-call]
        pubsub.psubscribe(
            **{
                "*.celeryev/*": lambda frame: self._frames.put(frame["data"]),
                f"__keyspace@0__:{TAKEN_PATTERN}": self._hear,
            }
        )
        self._thread = pubsub.run_in_thread(sleep_time=1.0, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()
        self._thread.join()
        self._client.close()

    def handled(self, num_messages: int) -> list[Handled]:
        """Waits for the last of so many messages, one of which is worked off after the other."""
        received: dict[str, float] = {}
        handled: list[Handled] = []
        while len(handled) < num_messages:
            body = json.loads(json.loads(self._frames.get(timeout=PATIENCE_S))["body"])
            for event in body if isinstance(body, list) else [body]:
                if event["type"] == "task-received":
                    received[event["uuid"]] = event["timestamp"]
                elif event["type"] == "task-succeeded":
                    message_s = event["timestamp"] - received[event["uuid"]]
                    answer_ms = ast.literal_eval(event["result"])["server_ms"]
                    after_s = self._acknowledged_s.get(timeout=PATIENCE_S) - event["timestamp"]
                    if after_s < 0:
                        raise RuntimeError("an acknowledgement came before its message was done")
                    handled.append(Handled(1000 * message_s, answer_ms, 1000 * after_s))
        return handled

    def _hear(self, said: Mapping[str, bytes]) -> None:
        if said["data"] == b"hdel":
            self._acknowledged_s.put(time.time())


def bare_median_ms(worker: MeasuredWorker, prompts: list[Prompt]) -> float:
    """Sends capture requests through a bare socket; median time of an answer."""
    seconds = []
    # A connection that rested for a round of the worker's may have been closed by the server.
    with socket.create_connection(("127.0.0.1", worker.server.port), PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for prompt in prompts:
            job = Job.of("bare", worker.capture.spec.digest, prompt)
            request = request_of(job)
            time.sleep(REST_S)
            begun = time.perf_counter()
            connection.sendall(request)
            status = read_answer(connection)
            seconds.append(time.perf_counter() - begun)
            if not status.startswith("HTTP/1.1 200 "):
                raise RuntimeError(f"the server answered {status}")
            (worker.dumps / dump_name(job.key)).unlink()
    return 1000 * statistics.median(seconds)


def request_of(job: Job) -> bytes:
    """The capture request that a worker sends."""
    capture = CaptureRequest(job.key, job.prompt.num_tokens, job.spec_digest)
    body = json.dumps(
        {
            "rid": job.key,
            "input_ids": job.prompt.token_ids.tolist(),
            "sampling_params": {
                "max_new_tokens": 0,
                "temperature": 0,
                "custom_params": {FIELD: capture.to_json()},
            },
        }
    ).encode()
    head = (
        "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def read_answer(connection: socket.socket) -> str:
    """Reads one whole answer; its first line."""
    answer = b""
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += received(connection)
    status, *fields = answer[:end].decode().splitlines()
    (length,) = (field for field in fields if field.lower().startswith("content-length:"))
    num_missing = int(length.split(":")[1]) - len(answer[end + 4 :])
    while num_missing > 0:
        num_missing -= len(received(connection))
    return status


def received(connection: socket.socket) -> bytes:
    """Some bytes of an answer."""
    if not (data := connection.recv(1 << 16)):
        raise ConnectionError("the server hung up")
    return data


if __name__ == "__main__":
    sys.exit(main())
