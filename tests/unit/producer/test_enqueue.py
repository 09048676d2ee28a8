"""What enqueuing puts into a real Redis."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import TASK_NAME, Job, StatetapError, queue_name
from statetap_contract.transport import alive_name, taken_name
from statetap_local.made_runs import MADE_SPEC as SPEC
from statetap_local.made_runs import made_run
from statetap_local.services import LocalRedis
from statetap_producer.queueing import feed, queue_lease
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.enqueue import EnqueueOutcome, enqueue
from statetap_producer.queueing.feed import FeedProgress
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.run.plan import Order
from statetap_producer.run.run_folder import RunFolder

from .conftest import give_up, prompts_of, store

QUEUE = queue_name(SPEC.digest)
#: What a worker at work holds.
TAKEN = taken_name("w")


@pytest.fixture
def made(tmp_path: Path) -> RunFolder:
    """A run of four prompts."""
    return made_run(tmp_path / "made", 5, 9, 3, 7)


def messages_in(redis_server: LocalRedis) -> list[dict[str, Any]]:
    """Messages in the queue, oldest first, as any Redis client sees them."""
    with redis_server.client() as client:
        raw: Any = client.lrange(QUEUE, 0, -1)
    return [json.loads(message) for message in reversed(raw)]


def jobs_in(redis_server: LocalRedis) -> list[Job]:
    bodies = [json.loads(message["body"]) for message in messages_in(redis_server)]
    return [Job.from_message(arguments[0]) for arguments, _, _ in bodies]


def fill(redis_server: LocalRedis, run: RunFolder, window: int = 0) -> EnqueueOutcome:
    return enqueue(run, redis_server.url, window=window)


def test_every_pending_prompt_becomes_a_message(redis_server: LocalRedis, made: RunFolder) -> None:
    """The messages hold the planned prompts, in order, under their keys."""
    assert fill(redis_server, made) == EnqueueOutcome(4, 0, 0, 0)
    inputs = made.read_record().inputs
    texts = inputs.tokenizer_digest, inputs.template_digest
    assert jobs_in(redis_server) == [
        Job(row.key, "made", SPEC.digest, row.prompt, *texts, attempt=1) for row in prompts_of(made)
    ]
    headers = [message["headers"] for message in messages_in(redis_server)]
    assert {header["task"] for header in headers} == {TASK_NAME}


def test_flower_shows_words_not_ids(redis_server: LocalRedis, made: RunFolder) -> None:
    """The message's short form names key, tokens, run and attempt, and holds no packed ids."""
    fill(redis_server, made)
    key = prompts_of(made)[0].key
    headers = messages_in(redis_server)[0]["headers"]
    assert headers["argsrepr"] == f"{key}, 5 tokens, run made, attempt 1"


@pytest.mark.parametrize(
    ("order", "lengths"),
    [("plan", [5, 9, 3, 7]), ("longest", [9, 7, 5, 3]), ("shortest", [3, 5, 7, 9])],
)
def test_prompts_come_in_the_order_asked_for(
    redis_server: LocalRedis, made: RunFolder, order: Order, lengths: list[int]
) -> None:
    """The first of it is the first that a worker takes."""
    enqueue(made, redis_server.url, window=0, order=order)
    assert [job.prompt.num_tokens for job in jobs_in(redis_server)] == lengths


def test_stored_dead_and_queued_prompts_are_left_out(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """What is settled or under way is not queued again, however often one asks."""
    first, second, third, fourth = prompts_of(made)
    store(made, first)
    give_up(made, second.key)
    assert fill(redis_server, made) == EnqueueOutcome(2, 1, 1, 0)
    assert fill(redis_server, made) == EnqueueOutcome(0, 1, 1, 2)
    assert [job.key for job in jobs_in(redis_server)] == [third.key, fourth.key]
    with redis_server.client() as client:
        client.rpop(QUEUE)
    assert fill(redis_server, made) == EnqueueOutcome(1, 1, 1, 1)
    assert [job.key for job in jobs_in(redis_server)] == [fourth.key, third.key]


def test_a_prompt_that_a_worker_holds_is_not_queued(
    redis_server: LocalRedis, made: RunFolder
) -> None:
    """What was taken and not acknowledged lies in Celery's hash."""
    fill(redis_server, made)
    with redis_server.client() as client:
        message: Any = client.rpop(QUEUE)
        client.hset(TAKEN, "tag", json.dumps([json.loads(message), "", QUEUE]))
        client.set(alive_name(TAKEN), "")
    assert fill(redis_server, made) == EnqueueOutcome(0, 0, 0, 4)


@pytest.fixture
def consumed(redis_server: LocalRedis) -> Iterator[list[int]]:
    """Something takes a message every few milliseconds; gives the lengths that it saw."""
    lengths: list[int] = []
    is_over = threading.Event()

    def consume() -> None:
        with redis_server.client() as client:
            while not is_over.wait(0.002):
                length: Any = client.llen(QUEUE)
                lengths.append(length)
                client.rpop(QUEUE)

    thread = threading.Thread(target=consume)
    thread.start()
    yield lengths
    is_over.set()
    thread.join()


def test_the_queue_never_holds_more_than_the_window(
    redis_server: LocalRedis, tmp_path: Path, consumed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All prompts come through, a few at a time."""
    monkeypatch.setattr(feed, "_PAUSE_S", 0.001)
    run = made_run(tmp_path / "made", *[4] * 300)
    heard: list[FeedProgress] = []
    outcome = enqueue(run, redis_server.url, window=20, on_progress=heard.append)
    assert outcome == EnqueueOutcome(300, 0, 0, 0)
    assert 0 < max(consumed) <= 20
    assert max(now.num_waiting for now in heard) <= 20
    assert [now.num_enqueued for now in heard] == sorted(now.num_enqueued for now in heard)
    assert heard[-1].num_enqueued == 300
    assert heard[-1].memory.used_bytes > 0


def test_batches_are_bounded_in_bytes(
    redis_server: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts are sent in smaller batches, and all of them arrive."""
    monkeypatch.setattr(feed, "_BATCH_BYTES", 5000)
    run = made_run(tmp_path / "made", *[100] * 30)
    heard: list[FeedProgress] = []
    enqueue(run, redis_server.url, window=0, on_progress=heard.append)
    counts = [now.num_enqueued for now in heard]
    sizes = [after - before for before, after in pairwise(counts)]
    assert max(sizes) < 8
    assert len(jobs_in(redis_server)) == 30


def test_two_at_once_are_one_too_many(redis_server: LocalRedis, made: RunFolder) -> None:
    """The second one is told who is filling the queue, and queues nothing."""
    with (
        Broker(redis_server.url) as broker,
        QueueLease(broker, SPEC.digest, "made"),
        pytest.raises(StatetapError, match="is being filled by process") as caught,
    ):
        fill(redis_server, made)
    assert (caught.value.kind, caught.value.exit_code) == ("queue-taken", 3)
    assert jobs_in(redis_server) == []


def test_who_loses_the_lease_queues_no_more(
    redis_server: LocalRedis, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After FLUSHALL another one was first: the rest is left to it."""
    monkeypatch.setattr(feed, "_BATCH", 1)
    monkeypatch.setattr(queue_lease, "_RENEWAL_S", 0.05)
    other = json.dumps({"host": "elsewhere", "pid": 7, "since": "now"})
    threads_before = threading.active_count()

    def lose(_: FeedProgress) -> None:
        with redis_server.client() as client:
            client.set(f"statetap.lease.{SPEC.digest}.made", other)
        deadline = time.monotonic() + 20
        # The thread that renews the lease ends when it is lost.
        while threading.active_count() > threads_before:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with pytest.raises(StatetapError, match="process 7 on elsewhere"):
        enqueue(made, redis_server.url, window=0, on_progress=lose)
    assert len(jobs_in(redis_server)) == 1


@pytest.fixture
def limited(redis_server: LocalRedis) -> Iterator[int]:
    """Redis may use 4 MB more than it does; gives its limit."""
    with redis_server.client() as client:
        client.flushall()
        used: Any = client.info("memory")
        limit = used["used_memory"] + 4_000_000
        client.config_set("maxmemory", limit)
        yield limit
        client.config_set("maxmemory", 0)


def test_a_fifth_of_redis_is_left_to_workers(
    redis_server: LocalRedis, limited: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed waits and says so; a worker takes and acknowledges, and all of it goes in."""
    monkeypatch.setattr(feed, "_PAUSE_S", 0.01)
    run = made_run(tmp_path / "made", *[400] * 6000)
    heard: list[FeedProgress] = []
    taken: list[str] = []

    def work(now: FeedProgress) -> None:
        heard.append(now)
        with redis_server.client() as client:
            if now.is_memory_full:
                for _ in range(200):
                    take(client, taken)

    outcome = enqueue(run, redis_server.url, window=0, on_progress=work)
    assert outcome == EnqueueOutcome(6000, 0, 0, 0)
    assert any(now.is_memory_full for now in heard)
    assert max(now.memory.used_bytes for now in heard) < 0.9 * limited
    taken += [job.key for job in jobs_in(redis_server)]
    assert taken == [row.key for row in prompts_of(run)]


def take(client: Any, taken: list[str]) -> None:
    """What a Celery worker does with a message; Redis without memory takes no MULTI."""
    message = client.rpop(QUEUE)
    with client.pipeline(transaction=True) as pipeline:
        pipeline.hset(TAKEN, "tag", message)
        pipeline.hdel(TAKEN, "tag")
        pipeline.execute()
    arguments, _, _ = json.loads(json.loads(message)["body"])
    taken.append(Job.from_message(arguments[0]).key)


def test_a_redis_that_is_full_of_other_things_says_so(
    redis_server: LocalRedis, limited: int, made: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no message is in it, nobody will make room: one sentence, and nothing is queued."""
    monkeypatch.setattr(feed, "_NO_ROOM_AFTER_S", 0.1)
    with redis_server.client() as client:
        used: Any = client.info("memory")
        while used["used_memory"] < 0.85 * limited:
            client.rpush("other", bytes(50_000))
            used = client.info("memory")
        with pytest.raises(StatetapError, match="while no message is in it") as caught:
            fill(redis_server, made)
        client.delete("other")
    assert (caught.value.kind, caught.value.exit_code) == ("redis-full", 3)
    assert redis_server.password not in caught.value.message
    assert jobs_in(redis_server) == []
    assert fill(redis_server, made) == EnqueueOutcome(4, 0, 0, 0)


def test_a_redis_that_others_fill_loses_nothing(
    redis_server: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that Redis refuses is refused whole; once there is room, the rest goes in."""
    monkeypatch.setattr(feed, "_BATCH", 50)
    run = made_run(tmp_path / "made", *[40] * 200)
    push = Broker.push

    def push_until_full(broker: Broker, queue: str, messages: Sequence[bytes]) -> None:
        if broker.num_waiting(queue) == 100:
            broker.client.config_set("maxmemory", 1)
        push(broker, queue, messages)

    monkeypatch.setattr(Broker, "push", push_until_full)
    try:
        with pytest.raises(StatetapError, match="no memory left") as caught:
            fill(redis_server, run)
    finally:
        monkeypatch.undo()
        with redis_server.client() as client:
            client.config_set("maxmemory", 0)
    assert (caught.value.kind, caught.value.exit_code) == ("redis-full", 3)
    assert redis_server.password not in caught.value.message
    assert len(jobs_in(redis_server)) == 100
    assert fill(redis_server, run) == EnqueueOutcome(100, 0, 0, 100)
    assert [job.key for job in jobs_in(redis_server)] == [row.key for row in prompts_of(run)]


@pytest.fixture
def mortal_redis(tmp_path: Path) -> Iterator[LocalRedis]:
    """A Redis of its own, with its append-only file on, that a test may kill."""
    service = LocalRedis(tmp_path / "redis", tmp_path / "redis.log", "s3cret-word")
    yield service
    service.stop()


def test_a_redis_that_dies_in_the_middle_loses_nothing(
    mortal_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed with -9 between batches and started again: what is missing is enqueued, once."""
    monkeypatch.setattr(feed, "_BATCH", 10)
    run = made_run(tmp_path / "made", *[40] * 200)

    def kill_soon(now: FeedProgress) -> None:
        if now.num_enqueued == 100:
            # The file is written to within a second.
            time.sleep(1.5)
            mortal_redis.kill()

    with pytest.raises(StatetapError) as caught:
        enqueue(run, mortal_redis.url, window=0, on_progress=kill_soon)
    assert (caught.value.kind, caught.value.exit_code) == ("redis-unreachable", 3)
    again = restarted(mortal_redis, tmp_path)
    try:
        outcome = fill(again, run)
        assert outcome.num_queued_before + outcome.num_enqueued == 200
        assert outcome.num_queued_before == 100
        assert sorted(job.key for job in jobs_in(again)) == sorted(
            row.key for row in prompts_of(run)
        )
    finally:
        again.stop()


def restarted(killed: LocalRedis, tmp_path: Path) -> LocalRedis:
    """Another server process over the files that the killed one left."""
    return LocalRedis(tmp_path / "redis", tmp_path / "redis.log", killed.password)
