"""Everything at once: 500 requests among the tests, 5,000 by ``make stress``."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import pytest
from safetensors import SafetensorError
from statetap_contract import Job, Receipt, StatetapError, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    ask,
    assert_no_leftovers,
    assert_right,
    capture_in_time,
    generate,
    job_of,
    num_retracted,
    other_traffic,
    post,
    prompts_of,
    request_body,
    vanish,
)
from .reference import Reference

_NUM_IN_FLIGHT: Final = 16
_LONGEST: Final = 1500


@pytest.fixture
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def server(tiny_model: Path, dumps: Path, tmp_path: Path) -> Iterator[LocalServer]:
    """A server whose scheduler does everything that it can do, and has little room for it."""
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path / "server.log",
        arguments=[
            "--max-total-tokens=6144",
            "--chunked-prefill-size=128",
            "--enable-mixed-chunk",
        ],
        environment={"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "2"},
    )
    yield service
    service.stop()


class Judge:
    """Compares dumps with HF transformers in a thread of its own, then deletes them."""

    def __init__(self, dumps: Path, reference: Reference) -> None:
        self.wrong: list[str] = []
        self._dumps = dumps
        self._reference = reference
        self._thread = ThreadPoolExecutor(1)
        # Dumps that wait for their turn lie in memory.
        self._room = threading.BoundedSemaphore(64)

    def take(self, job: Job, receipt: Receipt) -> Future[None]:
        """Puts a dump in the queue; waits while that is full."""
        self._room.acquire()
        return self._thread.submit(self._look_at, job, receipt)

    def close(self) -> None:
        """Waits until the queue is empty."""
        self._thread.shutdown()

    def _look_at(self, job: Job, receipt: Receipt) -> None:
        try:
            assert_right(self._dumps, self._reference, [(job, receipt)])
        except (AssertionError, OSError, SafetensorError) as error:
            self.wrong.append(f"{job.key}: {error}")
        finally:
            (self._dumps / dump_name(job.key)).unlink(missing_ok=True)
            self._room.release()


@dataclass(frozen=True, slots=True)
class Visit:
    """What one client needs for its request."""

    url: str
    client: Server
    judge: Judge
    job: Job
    generator: random.Random


def plain_capture(visit: Visit) -> None:
    """What a worker does."""
    visit.judge.take(visit.job, visit.client.capture(visit.job))


def decoding(visit: Visit) -> None:
    """Stays in the batch after its prompt is done, and may be retracted from it."""
    answer = ask(visit.url, visit.job, max_new_tokens=visit.generator.randrange(1, 40))
    assert answer.receipt is not None, answer.text
    visit.judge.take(visit.job, answer.receipt)


def repeated(visit: Visit) -> None:
    """Replayed while its dump is there, computed anew once it is gone."""
    receipt = visit.client.capture(visit.job)
    assert visit.client.capture(visit.job) == receipt
    visit.judge.take(visit.job, receipt).result()
    again = visit.client.capture(visit.job)
    assert again.attempt != receipt.attempt
    visit.judge.take(visit.job, again)


def twice_in_flight(visit: Visit) -> None:
    """One of two is computed; the other one is refused, or replayed."""
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda _: ask(visit.url, visit.job), range(2)))
    assert {answer.status for answer in answers} <= {200, 409}, answers
    (receipt,) = {answer.receipt for answer in answers if answer.status == 200}
    assert receipt is not None, answers
    visit.judge.take(visit.job, receipt)


def vanishing(visit: Visit) -> None:
    """Hangs up before its answer is there, and comes back."""
    vanish(visit.url, visit.job, after_s=visit.generator.uniform(0.001, 0.5))
    visit.judge.take(visit.job, capture_in_time(visit.client, visit.job))


def hostile(visit: Visit) -> None:
    """Refused, whatever is wrong with it."""
    body = request_body(visit.job)
    ids = body["input_ids"]
    wrong: list[dict[str, Any]] = [
        {"input_ids": [*ids[:-1], 512]},
        {"input_ids": [-1, *ids[1:]]},
        {"input_ids": [*ids, 5]},
        {"rid": "../../etc/passwd"},
        {"rid": visit.job.key[:-1]},
    ]
    assert post(visit.url, "generate", body | visit.generator.choice(wrong)).status_code == 400


#: How often each kind of client comes.
_WEIGHTS: Final[dict[Callable[[Visit], None], int]] = {
    plain_capture: 6,
    decoding: 4,
    repeated: 1,
    twice_in_flight: 1,
    vanishing: 2,
    hostile: 1,
}


def test_everything_at_once(
    server: LocalServer, dumps: Path, reference: Reference, pytestconfig: pytest.Config
) -> None:
    """No wrong row, no answer lost, nothing left over, and the server is well afterwards."""
    num_requests: int = pytestconfig.getoption("--stress-requests")
    seed: int = pytestconfig.getoption("--stress-seed")
    before = set(dumps.iterdir())
    judge = Judge(dumps, reference)
    lost: list[str] = []
    begun_s = time.monotonic()
    client = Server(server.url)
    spec_digest = client.handshake().spec.digest
    plan = make_plan(server, num_requests, seed)

    def visit(turn: int) -> str:
        kind, ids = plan[turn]
        job, generator = job_of(spec_digest, ids), random.Random(f"{seed} {turn}")
        try:
            kind(Visit(server.url, client, judge, job, generator))
        except (AssertionError, StatetapError, httpx.HTTPError, ValueError) as error:
            lost.append(f"{kind.__name__}, {len(ids)} tokens: {error!r}")
        return kind.__name__

    with other_traffic(server) as answered, ThreadPoolExecutor(_NUM_IN_FLIGHT) as threads:
        kinds = Counter(threads.map(visit, range(num_requests)))
    judge.close()
    took_s = time.monotonic() - begun_s
    assert_no_leftovers(dumps)
    left_over = set(dumps.iterdir()) - before
    state = client.handshake()  # raises when a writer is dead
    retractions = {
        reason: num_retracted(server, reason)
        for reason in ("Testing retraction", "KV cache pool is full")
    }
    verdict = f"{len(judge.wrong)} wrong, {len(lost)} lost, {len(left_over)} left over"
    print(  # noqa: T201  the result of make stress
        f"\nseed {seed}: {num_requests} requests, {_NUM_IN_FLIGHT} in flight, {took_s:.0f} s\n"
        f"captured: {dict(kinds)}; published {state.num_published}, failed {state.num_failed}\n"
        f"beside them: {dict(Counter(answered))}; retracted: {retractions}\n"
        f"verdict: {verdict}"
    )
    assert (judge.wrong, lost, left_over) == ([], [], set())
    assert retractions["Testing retraction"]


def make_plan(
    server: LocalServer, num_requests: int, seed: int
) -> list[tuple[Callable[[Visit], None], list[int]]]:
    """Kinds of clients and their prompts; every fourth begins with a prefix out of the cache."""
    generator = random.Random(seed)
    prefixes = prompts_of([20, 128, 300, 700], seed)
    for prefix in prefixes:
        generate(server, prefix, max_new_tokens=4)
    plan = []
    for kind in generator.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=num_requests):
        # As many prompts of 1 to 10 tokens as of 100 to 1,000.
        length = round(_LONGEST ** generator.random())
        prefix = generator.choice(prefixes) if generator.random() < 0.25 else []
        tail = [generator.randrange(2, 512) for _ in range(length)]
        plan.append((kind, (prefix + tail)[:_LONGEST]))
    return plan
