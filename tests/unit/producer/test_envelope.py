"""The message around a job, against the one that Celery itself sends."""

import json
from array import array
from typing import Any

import pytest
from celery import Celery
from statetap_contract import TASK_NAME, Job, Prompt, celery_settings, queue_name
from statetap_local.services import LocalRedis
from statetap_producer.queueing.envelope import Envelope

SPEC_DIGEST = "ab" * 16
JOB = Job.of("a-run", SPEC_DIGEST, Prompt(array("i", [3, 1, 4]), ((1, 2),)), "cd" * 16)
QUEUE = queue_name(SPEC_DIGEST)


@pytest.fixture
def celery_app(redis_server: LocalRedis) -> Any:
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(redis_server.url))
    yield app
    app.close()


def test_the_message_is_what_celery_sends(redis_server: LocalRedis, celery_app: Any) -> None:
    """Every field, but for names that are drawn anew each time and what only a reply would need."""
    celery_app.send_task(
        TASK_NAME,
        args=[JOB.to_message()],
        task_id=JOB.key,
        queue=QUEUE,
        argsrepr=str(JOB),
        kwargsrepr="",
        ignore_result=True,
    )
    with redis_server.client() as client:
        raw: Any = client.rpop(QUEUE)
    theirs = json.loads(raw)
    ours = json.loads(Envelope(SPEC_DIGEST).wrap(JOB))
    for message in (ours, theirs):
        message["body"] = json.loads(message["body"])
        assert message["properties"].pop("delivery_tag")
        assert message["headers"].pop("origin")
    assert theirs["properties"].pop("reply_to")
    # Celery copies these from the headers; no reader looks for them there.
    assert theirs["properties"].pop("argsrepr") == theirs["headers"]["argsrepr"]
    assert theirs["properties"].pop("kwargsrepr") == theirs["headers"]["kwargsrepr"]
    assert ours["properties"].pop("reply_to") == ""
    assert ours == theirs


def test_celery_reads_the_message(redis_server: LocalRedis, celery_app: Any) -> None:
    """A consumer of kombu's gets the job back."""
    with redis_server.client() as client:
        client.lpush(QUEUE, Envelope(SPEC_DIGEST).wrap(JOB))
    with celery_app.connection_for_read() as connection, connection.channel() as channel:
        message = channel.basic_get(QUEUE)
    (arguments, named, _) = message.decode()
    assert Job.from_message(arguments[0]) == JOB
    assert (len(arguments), named) == (1, {})


def test_no_two_messages_have_one_tag() -> None:
    """Redis keeps what workers hold under it: one of two would be lost."""
    envelope = Envelope(SPEC_DIGEST)
    tags = {json.loads(envelope.wrap(JOB))["properties"]["delivery_tag"] for _ in range(100)}
    assert len(tags) == 100
