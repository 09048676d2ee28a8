"""What a round finds and puts back, against a real Redis."""

import time
from array import array
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import DeadLetter, Job, StatetapError, queue_name
from statetap_contract.announcement import Announcement, pack_letters, pack_samples
from statetap_local.made_runs import MADE_SPEC as SPEC
from statetap_local.made_runs import made_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing import settled
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.enqueue import EnqueueOutcome, enqueue
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.queueing.reconcile import ReconcileOutcome, reconcile
from statetap_producer.queueing.reconcile_view import round_line
from statetap_producer.queueing.rerun import rerun
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.plan import PlannedPrompt
from statetap_producer.run.run_folder import RunFolder
from statetap_worker.notice_board import NoticeBoard, Speaker

from .conftest import give_up, prompts_of, store

QUEUE = queue_name(SPEC.digest)


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """A run of eight prompts."""
    return made_run(tmp_path / "made", *range(5, 13))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is announced here is announced at once."""
    monkeypatch.setattr(settled, "ANNOUNCED_AFTER_S", 0.0)


def queued_keys(redis_server: LocalRedis) -> list[str]:
    """Keys of the messages in the queue, oldest first."""
    with redis_server.client() as client:
        raw: Any = client.lrange(QUEUE, 0, -1)
    return [message_id(message) for message in reversed(raw)]


def message_id(message: bytes) -> str:
    return message.split(b'"id": "')[1][:32].decode()


def put_back(redis_server: LocalRedis, run: RunFolder, **options: Any) -> ReconcileOutcome:
    return reconcile(run, redis_server.url, **({"window": 0} | options))


def found(outcome: ReconcileOutcome) -> tuple[int, int, int | None, int | None, int | None]:
    numbers = outcome.numbers
    places = numbers.queued, numbers.in_flight, numbers.missing
    assert numbers.planned == numbers.stored + numbers.dead + numbers.pending
    return numbers.stored, numbers.dead, *places


def test_what_is_nowhere_is_enqueued(redis_server: LocalRedis, made: RunFolder) -> None:
    """In the plan's order; what is stored, dead, queued or in flight is left alone."""
    prompts = prompts_of(made)
    store(made, prompts[0])
    give_up(made, prompts[1].key)
    inputs = made.read_record().inputs
    texts = inputs.tokenizer_digest, inputs.template_digest
    jobs = [Job(row.key, "made", SPEC.digest, row.prompt, *texts) for row in prompts]
    envelope = Envelope(SPEC.digest)
    with redis_server.client() as client:
        client.lpush(QUEUE, envelope.wrap(jobs[2]))
        for job in (jobs[2], jobs[3]):
            client.hset("unacked", job.key, f'[{envelope.wrap(job).decode()}, "", "{QUEUE}"]')
    outcome = put_back(redis_server, made)
    # The third is both queued and in flight: it counts where it is further.
    assert found(outcome) == (1, 1, 0, 2, 4)
    assert (outcome.num_enqueued, outcome.num_beyond_window) == (4, 0)
    assert not outcome.is_over
    assert queued_keys(redis_server) == [prompts[n].key for n in (2, 4, 5, 6, 7)]
    again = put_back(redis_server, made)
    assert found(again) == (1, 1, 4, 2, 0)
    assert again.num_enqueued == 0


def test_the_window_is_kept(redis_server: LocalRedis, made: RunFolder) -> None:
    """A round fills the queue and leaves the rest for the next one."""
    first = put_back(redis_server, made, window=3)
    assert (first.num_enqueued, first.num_beyond_window) == (3, 5)
    full = put_back(redis_server, made, window=3)
    assert (full.num_enqueued, full.num_beyond_window) == (0, 5)
    with redis_server.client() as client:
        client.rpop(QUEUE, 2)
    assert put_back(redis_server, made, window=3).num_enqueued == 2
    assert round_line(first) == (
        "0 of 8 stored, 0 dead, 0 queued, 0 in flight, 3 enqueued, 5 for the next round"
    )


def test_a_run_is_over_when_nothing_is_pending(redis_server: LocalRedis, made: RunFolder) -> None:
    """Stored or dead, whatever lies in Redis."""
    *most, last = prompts_of(made)
    store(made, *most)
    give_up(made, last.key)
    outcome = put_back(redis_server, made)
    assert outcome.is_over
    assert found(outcome) == (7, 1, 0, 0, 0)


def test_nothing_is_done_while_another_fills_the_queue(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """It is named instead."""
    with (
        Broker(redis_server.url) as broker,
        QueueLease(broker, SPEC.digest, "made"),
        pytest.raises(StatetapError, match="is being filled by process") as caught,
    ):
        put_back(redis_server, made)
    assert caught.value.kind == "queue-taken"
    assert queued_keys(redis_server) == []


class FarWorker:
    """A worker whose shards cannot be seen from here, as far as Redis shows it."""

    def __init__(self, redis_server: LocalRedis, name: str = "far") -> None:
        self._redis = redis_server
        self._name = name

    @property
    def address(self) -> str:
        return f"{self._name}@there:/runs"

    def tell(self, samples: list[PlannedPrompt], letters: tuple[DeadLetter, ...] = ()) -> None:
        """Announces all that it holds."""
        with self._redis.client() as client:
            board = NoticeBoard(
                client, f"place-{self._name}", Speaker(self._name, "there", "/runs")
            )
            lengths = array("I", [row.prompt.num_tokens for row in samples])
            batch = pack_samples("".join(row.key for row in samples), lengths)
            letter_batches = [pack_letters(letters)] if letters else []
            blank: Announcement = board.blank(f"e{len(samples)}")
            told = board.add("made", blank, [batch], letter_batches, len(samples), is_complete=True)
        assert told is not None


def test_announced_samples_are_stored(redis_server: LocalRedis, made: RunFolder) -> None:
    """They are counted and not extracted again, and so are letters on that disk."""
    prompts = prompts_of(made)
    letter = DeadLetter(prompts[2].key, "mismatch", "why", 6, "http://s", "2026-01-01T00:00:00Z")
    FarWorker(redis_server).tell(prompts[:2], (letter,))
    store(made, prompts[1], prompts[3])
    outcome = put_back(redis_server, made)
    assert found(outcome) == (3, 1, 0, 0, 4)
    assert outcome.numbers.stored_tokens == 5 + 6 + 8
    assert outcome.numbers.stored_bytes == (5 + 6 + 8) * (3 * 16 * 4 + 5)
    assert queued_keys(redis_server) == [row.key for row in prompts[4:]]


def test_a_letter_on_a_disk_that_both_see_is_one_letter(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """A pardon for it holds, whether Redis knows of it or not."""
    first = prompts_of(made)[0]
    give_up(made, first.key)
    letter = DeadLetter(
        first.key, "mismatch", "why", 6, "http://127.0.0.1:30000", "2026-01-01T00:00:00Z"
    )
    FarWorker(redis_server).tell([], (letter,))
    assert rerun(made, redis_server.url, window=0).num_enqueued == 1
    assert RunState(made).numbers().dead == 0
    with Broker(redis_server.url) as broker:
        assert RunState(made, broker).numbers().dead == 0
    give_up(made, first.key)
    assert RunState(made).numbers().dead == 1


def test_a_silent_worker_is_named_and_waited_for(redis_server: LocalRedis, made: RunFolder) -> None:
    """Redis lost what it had announced: nobody knows which prompts it holds."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:2])
    assert put_back(redis_server, made, window=1).num_enqueued == 1
    with redis_server.client() as client:
        client.flushall()
    outcome = put_back(redis_server, made)
    assert (outcome.num_enqueued, outcome.num_held_back) == (0, 8)
    assert outcome.silent_workers == (far.address,)
    assert f"held back 8: nothing was heard from {far.address}" in round_line(outcome)
    assert round_line(outcome).endswith(f"--without {far.address}")
    for command in (enqueue, rerun):
        with pytest.raises(StatetapError) as caught:
            command(made, redis_server.url, window=0)
        assert (caught.value.kind, caught.value.exit_code) == ("worker-silent", 3)
        assert f"--without {far.address}" in caught.value.message
    assert queued_keys(redis_server) == []


def test_a_silent_worker_may_be_done_without(redis_server: LocalRedis, made: RunFolder) -> None:
    """Each by its name; then what it held is extracted again."""
    prompts = prompts_of(made)
    near, far = FarWorker(redis_server, "near"), FarWorker(redis_server, "far")
    near.tell(prompts[:1])
    far.tell(prompts[1:2])
    put_back(redis_server, made, window=1)
    with redis_server.client() as client:
        client.flushall()
    one = put_back(redis_server, made, without=[far.address])
    assert (one.num_enqueued, one.silent_workers) == (0, (near.address,))
    both = put_back(redis_server, made, without=[far.address, near.address])
    assert (both.num_enqueued, both.num_held_back) == (8, 0)


def test_a_worker_that_speaks_again_is_not_missed(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """Also when it is still named as one to do without."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:2])
    put_back(redis_server, made, window=1)
    with redis_server.client() as client:
        client.flushall()
    far.tell(prompts[:2])
    outcome = put_back(redis_server, made, without=[far.address])
    assert found(outcome) == (2, 0, 0, 0, 6)
    assert outcome.num_enqueued == 6


def test_a_worker_that_was_never_heard_of_is_a_mistake(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """The sentence lists those there are."""
    FarWorker(redis_server).tell(prompts_of(made)[:2])
    with pytest.raises(StatetapError) as caught:
        put_back(redis_server, made, without=["fat@there:/runs"])
    assert (caught.value.kind, caught.value.exit_code) == ("worker-unknown", 2)
    assert caught.value.message.endswith("workers are: far@there")
    assert queued_keys(redis_server) == []


def test_what_is_about_to_be_announced_is_waited_for(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample far away that was acknowledged just before is not enqueued again."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:1])
    slept: list[float] = []

    def announce(seconds: float) -> None:
        slept.append(seconds)
        far.tell(prompts[:3])

    monkeypatch.setattr(time, "sleep", announce)
    assert enqueue(made, redis_server.url, window=0) == EnqueueOutcome(5, 3, 0, 0)
    assert len(slept) == 1
