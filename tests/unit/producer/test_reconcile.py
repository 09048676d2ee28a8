"""What a round finds and puts back, against a real Redis."""

import time
from array import array
from pathlib import Path
from typing import Any

import pytest
import redis
from statetap_contract import DeadLetter, Job, StatetapError, queue_name
from statetap_contract.announcement import Announcement, pack_letters, pack_samples
from statetap_contract.transport import alive_name, taken_name
from statetap_local.made_runs import MADE_SPEC as SPEC
from statetap_local.made_runs import made_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing import hear_workers
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
from statetap_worker.announcing.notice_board import NoticeBoard, Speaker
from statetap_worker.place import place_of

from .conftest import give_up, prompts_of, store

QUEUE = queue_name(SPEC.digest)
#: What a worker at work holds.
TAKEN = taken_name("w")


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """A run of eight prompts."""
    return made_run(tmp_path / "made", *range(5, 13))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is announced here is announced at once."""
    monkeypatch.setattr(hear_workers, "KNOWN_AFTER_S", 0.0)


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
        client.set(alive_name(TAKEN), "")
        for job in (jobs[2], jobs[3]):
            client.hset(TAKEN, job.key, f'[{envelope.wrap(job).decode()}, "", "{QUEUE}"]')
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

    def tell(
        self,
        samples: list[PlannedPrompt],
        letters: tuple[DeadLetter, ...] = (),
        *,
        is_at_work: bool = False,
    ) -> None:
        """Announces all that it holds."""
        with self._redis.client() as client:
            board = self._board(client)
            lengths = array("I", [row.prompt.num_tokens for row in samples])
            batch = pack_samples("".join(row.key for row in samples), lengths)
            letter_batches = [pack_letters(letters)] if letters else []
            blank: Announcement = board.blank(f"e{len(samples)}")
            told = board.add("made", blank, [batch], letter_batches, len(samples), is_complete=True)
            if not is_at_work:
                board.give_word()
        assert told is not None

    def appear(self, *behind: str) -> None:
        """Is at work, and says that it has announced everything but these runs."""
        with self._redis.client() as client:
            board = self._board(client)
            board.serve(SPEC.digest)
            assert board.take_word()
            board.is_as_left()
            board.appear(board.now_us(), behind)

    def _board(self, client: redis.Redis) -> NoticeBoard:
        return NoticeBoard(client, f"place-{self._name}", Speaker(self._name, "there", "/runs"))


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


def test_a_worker_that_was_given_up_stays_so(redis_server: LocalRedis, made: RunFolder) -> None:
    """For all commands, also when an older Redis comes back with its record."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:2])
    put_back(redis_server, made, window=1)
    assert put_back(redis_server, made, without=[far.address], window=4).num_enqueued == 3
    far.tell(prompts[:2])
    assert found(put_back(redis_server, made, window=1))[0] == 0
    with redis_server.client() as client:
        client.flushall()
    assert enqueue(made, redis_server.url, window=0) == EnqueueOutcome(8, 0, 0, 0)


def test_lost_samples_do_not_count_though_redis_remembers_them(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """A worker is given up with what it announced, and its lists go."""
    far = FarWorker(redis_server)
    far.tell(prompts_of(made)[:2])
    outcome = put_back(redis_server, made, without=["far@there"])
    assert found(outcome) == (0, 0, 0, 0, 8)
    assert outcome.num_enqueued == 8
    with redis_server.client() as client:
        assert list(client.scan_iter("statetap.announced*")) == []


def test_a_worker_that_speaks_again_counts_again(redis_server: LocalRedis, made: RunFolder) -> None:
    """Though it was given up."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:2])
    put_back(redis_server, made, without=[far.address], window=1)
    far.tell(prompts[:3])
    assert found(put_back(redis_server, made))[0] == 3
    with redis_server.client() as client:
        client.flushall()
    assert put_back(redis_server, made).silent_workers == (far.address,)


def test_a_worker_at_work_is_not_given_up(redis_server: LocalRedis, made: RunFolder) -> None:
    """Its disk is there."""
    far = FarWorker(redis_server)
    far.tell(prompts_of(made)[:2], is_at_work=True)
    far.appear()
    with pytest.raises(StatetapError, match=r"far@there:/runs is at work") as caught:
        put_back(redis_server, made, without=[far.address])
    assert (caught.value.kind, caught.value.exit_code) == ("worker-alive", 2)
    assert queued_keys(redis_server) == []


def test_a_silent_worker_without_which_all_is_known_is_not_missed(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """What it held is stored elsewhere, or dead."""
    prompts = prompts_of(made)
    far, other = FarWorker(redis_server), FarWorker(redis_server, "other")
    far.tell(prompts[:2])
    put_back(redis_server, made, window=1)
    with redis_server.client() as client:
        client.flushall()
    give_up(made, prompts[0].key)
    assert put_back(redis_server, made).silent_workers == (far.address,)
    other.tell(prompts[1:2])
    assert put_back(redis_server, made).silent_workers == ()
    assert enqueue(made, redis_server.url, window=0).num_enqueued == 0


def test_a_worker_that_announced_dead_letters_alone_is_missed(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """Its dead letters would be extracted again."""
    letter = DeadLetter(
        prompts_of(made)[0].key, "mismatch", "why", 6, "http://s", "2026-01-01T00:00:00Z"
    )
    far = FarWorker(redis_server)
    far.tell([], (letter,))
    assert found(put_back(redis_server, made, window=1))[1] == 1
    with redis_server.client() as client:
        client.flushall()
    outcome = put_back(redis_server, made)
    assert (outcome.num_enqueued, outcome.silent_workers) == (0, (far.address,))


@pytest.mark.parametrize("name", ["fat@there:/runs", "far@there:/runs2", "far@there:", "far@ther"])
def test_a_worker_that_was_never_heard_of_is_a_mistake(
    redis_server: LocalRedis, made: RunFolder, name: str
) -> None:
    """The sentence lists those there are."""
    FarWorker(redis_server).tell(prompts_of(made)[:2])
    with pytest.raises(StatetapError) as caught:
        put_back(redis_server, made, without=[name])
    assert (caught.value.kind, caught.value.exit_code) == ("worker-unknown", 2)
    assert caught.value.message.endswith("workers are: far@there:/runs")
    assert queued_keys(redis_server) == []


def test_what_is_about_to_be_announced_is_waited_for(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample far away that was acknowledged just before is not enqueued again."""
    prompts = prompts_of(made)
    far = FarWorker(redis_server)
    far.tell(prompts[:1], is_at_work=True)
    far.appear()
    num_pauses = 0

    def announce(_seconds: float) -> None:
        nonlocal num_pauses
        num_pauses += 1
        if num_pauses == 1:
            # Says something, but not yet of this run.
            far.appear("made")
        else:
            far.tell(prompts[:3], is_at_work=True)
            far.appear()

    monkeypatch.setattr(time, "sleep", announce)
    assert enqueue(made, redis_server.url, window=0) == EnqueueOutcome(5, 3, 0, 0)
    assert num_pauses == 2


def test_a_worker_that_holds_nothing_yet_is_waited_for_and_missed(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen at the queue of the run, so it may hold what Redis has forgotten."""
    far = FarWorker(redis_server)
    monkeypatch.setattr(time, "sleep", lambda _: far.appear())
    far.appear()
    assert enqueue(made, redis_server.url, window=0).num_enqueued == 8
    with redis_server.client() as client:
        client.flushall()
    monkeypatch.undo()
    monkeypatch.setattr(hear_workers, "KNOWN_AFTER_S", 0.0)
    outcome = put_back(redis_server, made)
    assert (outcome.num_enqueued, outcome.silent_workers) == (0, (far.address,))


def test_a_redis_that_forgot_everything_is_given_time(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that nobody here ever saw make themselves known to it."""
    assert put_back(redis_server, made).num_enqueued == 8
    with redis_server.client() as client:
        client.flushall()
    far = FarWorker(redis_server)

    def announce(_seconds: float) -> None:
        monkeypatch.setattr(hear_workers, "KNOWN_AFTER_S", 0.0)
        far.tell(prompts_of(made)[:3])

    monkeypatch.setattr(hear_workers, "KNOWN_AFTER_S", 60.0)
    monkeypatch.setattr(time, "sleep", announce)
    assert put_back(redis_server, made).num_enqueued == 5


def test_a_worker_whose_samples_are_seen_is_not_waited_for(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is one that looks at the very folder in which the run lies."""

    def refuse(_seconds: float) -> None:
        raise AssertionError

    prompts = prompts_of(made)
    store(made, *prompts[:2])
    FarWorker(redis_server).tell(prompts[:1], is_at_work=True)
    place = place_of(made.path.parent)
    with redis_server.client() as client:
        board = NoticeBoard(client, place, Speaker("near", "here", "/elsewhere/mounted"))
        board.serve(SPEC.digest)
        assert board.take_word()
        board.is_as_left()
    monkeypatch.setattr(time, "sleep", refuse)
    assert put_back(redis_server, made).num_enqueued == 6
