"""What a run has in Redis, read from a real one that moves."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from statetap_contract import TASK_NAME, Job, celery_settings, queue_name
from statetap_contract.transport import alive_name, taken_name
from statetap_local.made_runs import MADE_SPEC as SPEC
from statetap_local.made_runs import made_prompt
from statetap_local.services import LocalRedis
from statetap_producer.queueing import queue_scan
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.queue_scan import QueuedPrompts, queued_prompts

QUEUE = queue_name(SPEC.digest)
#: What a worker at work holds.
TAKEN = taken_name("w")


def job(number: int, run: str = "mine") -> Job:
    return Job.of(run, SPEC.digest, made_prompt(number, 4))


def put(redis_server: LocalRedis, *jobs: Job) -> None:
    with redis_server.client() as client:
        client.lpush(QUEUE, *(Envelope(job.spec_digest).wrap(job) for job in jobs))


def keys(*numbers: int) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(job(number).key) for number in numbers)


@pytest.fixture
def take(redis_server: LocalRedis) -> Any:
    """Takes messages off the queue, oldest first, as a worker does, without acknowledging them."""
    app: Any = Celery(set_as_current=False)
    settings: Any = celery_settings(redis_server.url)
    settings["broker_transport_options"]["unacked_key"] = TAKEN
    app.conf.update(settings)
    with redis_server.client() as client:
        client.set(alive_name(TAKEN), "")
    connection = app.connection_for_read()
    channel = connection.channel()
    yield lambda: channel.basic_get(QUEUE)
    # What is not acknowledged would go back to the queue, of which nothing is left.
    channel.qos.restore_at_shutdown = False
    connection.close()
    app.close()


def test_prompts_are_found_where_they_are(
    redis_server: LocalRedis, take: Callable[[], Any]
) -> None:
    """Waiting, taken, or both; those of other runs and of nobody's are not."""
    put(redis_server, job(0), job(1), job(2), job(3, "another"), job(0))
    take()
    found = queued_prompts(Broker(redis_server.url), SPEC.digest, "mine")
    assert found == QueuedPrompts(waiting=keys(1, 2, 0), taken=keys(0))
    assert job(0).key in found
    assert job(3).key not in found


def test_a_message_that_a_worker_sent_counts(redis_server: LocalRedis) -> None:
    """A retry comes from Celery itself."""
    app: Any = Celery(set_as_current=False)
    app.conf.update(celery_settings(redis_server.url))
    app.send_task(TASK_NAME, args=[job(5).to_message()], queue=QUEUE, countdown=60)
    app.close()
    found = queued_prompts(Broker(redis_server.url), SPEC.digest, "mine")
    assert found.waiting == keys(5)


def test_nothing_is_missed_while_messages_move(
    redis_server: LocalRedis, take: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between all reads one is taken and another one comes; what was there is found."""
    monkeypatch.setattr(queue_scan, "_CHUNK", 3)
    put(redis_server, *(job(number) for number in range(20)))
    broker = Broker(redis_server.url)
    read, others = broker.client.lrange, iter(range(100, 200))

    def read_and_move(*arguments: Any) -> Any:
        answer = read(*arguments)
        take()
        put(redis_server, job(next(others)))
        return answer

    monkeypatch.setattr(broker.client, "lrange", read_and_move)
    found = queued_prompts(broker, SPEC.digest, "mine")
    assert keys(*range(20)) <= found.waiting | found.taken


def test_what_others_left_in_redis_is_not_ours(redis_server: LocalRedis) -> None:
    """Neither in the queue nor among what is taken does foreign text end the look."""
    good = json.loads(Envelope(SPEC.digest).wrap(job(1)))
    foreign = ["no json", "[]", "{}", "[" * 100_000, '"x"', '{"body": 3, "properties": {}}']
    foreign += [json.dumps(good | {"body": body}) for body in ("no json", "[]", "[[]]", "[[3]]")]
    key_of_another_form = json.dumps([[job(1).to_message() | {"key": "../x"}], {}, {}])
    foreign.append(json.dumps(good | {"body": key_of_another_form}))
    with redis_server.client() as client:
        client.lpush(QUEUE, *foreign)
        entries = [*foreign, *(json.dumps([text, "", QUEUE]) for text in foreign)]
        client.set(alive_name(TAKEN), "")
        client.hset(TAKEN, mapping={str(n): entry for n, entry in enumerate(entries)})
    put(redis_server, job(2))
    found = queued_prompts(Broker(redis_server.url), SPEC.digest, "mine")
    assert found == QueuedPrompts(waiting=keys(2), taken=frozenset())
