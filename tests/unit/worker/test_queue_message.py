"""What of the queue Celery is given to see."""

import base64
import json
import random
import zlib
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from statetap_contract import TASK_NAME, Job, Prompt, RejectError, celery_settings, queue_name
from statetap_contract.job import MAX_TOKENS
from statetap_producer.queueing.envelope import Envelope
from statetap_worker.queueing.queue_message import MOST_BYTES, read_message

SPEC_DIGEST = "5a" * 16
QUEUE = queue_name(SPEC_DIGEST)


def job() -> Job:
    return Job.of("a-run", SPEC_DIGEST, Prompt(array("i", [5, 6, 7]), ((1, 3),)))


def sent_by_celery(**options: Any) -> bytes:
    """The message of the job, by way of Celery with a queue in memory."""
    with Celery("test") as app:
        app.conf.update(celery_settings("memory://"))
        app.conf.broker_transport_options = {"body_encoding": "utf-8"}
        app.send_task(TASK_NAME, args=[job().to_message()], queue=QUEUE, **options)
        with app.connection_for_read() as connection:
            message = connection.default_channel._get(QUEUE)
    return json.dumps(message).encode()


@pytest.mark.parametrize(
    ("send", "retries", "is_later"),
    [
        (lambda: Envelope(SPEC_DIGEST).wrap(job()), 0, False),
        (sent_by_celery, 0, False),
        (lambda: sent_by_celery(retries=3, countdown=60, task_id=job().key), 3, True),
    ],
)
def test_what_producer_and_worker_send_passes(
    send: Callable[[], bytes],
    retries: int,
    is_later: bool,  # noqa: FBT001
) -> None:
    """The job as it is, with its count of retries and its time."""
    message = json.loads(read_message(send(), QUEUE))
    assert Job.from_message(json.loads(message["body"])[0][0]) == job()
    assert message["headers"]["retries"] == retries
    assert (message["headers"]["eta"] is not None) == is_later
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": QUEUE}


def test_what_is_not_needed_is_left_out() -> None:
    """Whatever a field does in this or another version of Celery, it is not passed on."""
    envelope = json.loads(Envelope(SPEC_DIGEST).wrap(job()))
    envelope["headers"] |= {"called_directly": True, "on_message": "x", "argsrepr": ["no text"]}
    envelope["properties"]["delivery_info"] = {"exchange": "other", "routing_key": "other"}
    envelope["properties"]["reply_to"] = "somebody"
    message = json.loads(read_message(json.dumps(envelope).encode(), QUEUE))
    assert message["headers"].keys() == {
        *("lang", "task", "id", "retries", "eta", "argsrepr", "kwargsrepr"),
    }
    assert message["headers"]["argsrepr"] == ""
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": QUEUE}
    assert "reply_to" not in message["properties"]


def test_each_delivery_has_a_tag_of_its_own() -> None:
    """Also of one item that is taken twice."""
    item = Envelope(SPEC_DIGEST).wrap(job())
    tags = {json.loads(read_message(item, QUEUE))["properties"]["delivery_tag"] for _ in range(5)}
    assert len(tags) == 5


def test_the_longest_job_is_not_oversized() -> None:
    """With ids that do not compress, and each second token in a span of its own."""
    sixteenth = zlib.compress(random.Random(1).randbytes(4 * MAX_TOKENS // 16), 1)
    num_id_bytes = 16 * len(base64.b64encode(sixteenth))
    bounds = json.dumps(list(range(MAX_TOKENS)))
    num_bytes = len(Envelope(SPEC_DIGEST).wrap(job())) + num_id_bytes + len(bounds)
    assert 0.9 * MOST_BYTES < num_bytes <= MOST_BYTES
    with pytest.raises(RejectError) as caught:
        read_message(b" " * (MOST_BYTES + 1), QUEUE)
    assert caught.value.kind == "message-oversized"


def read_or_none(item: bytes) -> dict[str, Any] | None:
    """The message; None where it is rejected."""
    try:
        message: dict[str, Any] = json.loads(read_message(item, QUEUE))
    except RejectError:
        return None
    return message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_item_raises_anything_but_a_rejection(item: bytes) -> None:
    """Bytes and JSON of any shape."""
    with pytest.raises(RejectError):
        read_message(item, QUEUE)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else ()
    return [path, *(found for name, part in inner for found in paths_in(part, (*path, name)))]


ENVELOPE = json.loads(Envelope(SPEC_DIGEST).wrap(job()))
BODY = json.loads(ENVELOPE["body"])


@given(st.sampled_from(paths_in(ENVELOPE)[1:]), JSON)
def test_any_value_anywhere_is_read_or_rejected(path: tuple[str, ...], value: Any) -> None:
    """In the envelope; what passes has the job, whole."""
    envelope = json.loads(json.dumps(ENVELOPE))
    inner = envelope
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    message = read_or_none(json.dumps(envelope).encode())
    assert message is None or json.loads(message["body"]) == BODY


@given(st.sampled_from(sorted(BODY[0][0])), JSON)
def test_any_value_in_a_job_is_read_or_rejected(name: str, value: Any) -> None:
    """What passes names a run and a key; the rest is for ``Job.from_message`` to judge."""
    body = [[BODY[0][0] | {name: value}], *BODY[1:]]
    message = read_or_none(json.dumps(ENVELOPE | {"body": json.dumps(body)}).encode())
    if message is None:
        assert name in {"run", "key", "spec"}
    else:
        assert message["body"] == json.dumps(body)
