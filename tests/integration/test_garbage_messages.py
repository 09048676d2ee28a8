"""Garbage in the queue: a line in a ledger for each, and the worker lives."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any, Final

import psutil
import pytest
import redis
from statetap_contract import Job, queue_name
from statetap_contract.announcement import announced_key, read_place
from statetap_contract.transport import alive_name, taken_name
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.queue_scan import queued_prompts

from .bench import RUN, Bench, job_of
from .stand_in_server import SPEC

QUEUE: Final = queue_name(SPEC.digest)
MB: Final = 1_000_000


def good_job() -> Job:
    """The one that is sent after the garbage."""
    return job_of(99, 12)


def message(job: Job | None = None, **parts: Any) -> bytes:
    """A job's message, with some of its parts replaced; ``...`` takes one out."""
    envelope = json.loads(Envelope(SPEC.digest).wrap(job or job_of(0, 5)))
    for path, value in parts.items():
        inner = envelope
        *folders, name = path.split("__")
        for folder in folders:
            inner = inner[folder]
        name = name.replace("_", "-") if name.startswith("content") else name
        if value is ...:
            del inner[name]
        else:
            inner[name] = value
    return json.dumps(envelope).encode()


def body(*arguments: Any, named: Any = None, canvas: dict[str, Any] | None = None) -> str:
    """Body of a message in Celery's protocol 2."""
    empty = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
    return json.dumps([arguments, named or {}, empty | (canvas or {})])


def with_job(**fields: Any) -> bytes:
    """A message whose job has other fields."""
    return message(body=body(job_of(0, 5).to_message() | fields))


def in_time(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


#: Name of each: what is put into the queue, and the kind of its line in the ledger.
NO_MESSAGE: Final[dict[str, tuple[bytes, str]]] = {
    "nothing": (b"", "message-unreadable"),
    "a word": (b"garbage", "message-unreadable"),
    "no UTF-8": (b"\xff\xfe\x00", "message-unreadable"),
    "a pickle": (b"\x80\x04\x95\x0b\x00\x00\x00", "message-unreadable"),
    "half a message": (message()[:-40], "message-unreadable"),
    "deep lists": (b"[" * 100_000, "message-unreadable"),
    "deep objects": (b'{"a":' * 100_000, "message-unreadable"),
    "a number too long to read": (b"1" * 5_000, "message-unreadable"),
    "many small lists": (b"[" + b"[]," * 1_000_000 + b"[]]", "message-unreadable"),
    "a list": (b"[]", "message-unreadable"),
    "a number": (b"1", "message-unreadable"),
    "null": (b"null", "message-unreadable"),
    "text": (b'"text"', "message-unreadable"),
    "an empty object": (b"{}", "message-unreadable"),
}

BAD_ENVELOPES: Final = {
    "no headers": (message(headers=...), "message-unreadable"),
    "no properties": (message(properties=...), "message-unreadable"),
    "no body": (message(body=...), "message-unreadable"),
    "headers are a list": (message(headers=[1]), "message-unreadable"),
    "properties are a number": (message(properties=7), "message-unreadable"),
    "pickle": (message(content_type="application/x-python-serialize"), "message-unreadable"),
    "UTF-16": (message(content_encoding="utf-16"), "message-unreadable"),
    "base64, which it is not": (
        message(properties__body_encoding="base64"),
        "message-unreadable",
    ),
    "an encoding nobody knows": (message(properties__body_encoding="rot13"), "message-unreadable"),
    "compressed": (message(headers__compression="zlib"), "message-foreign"),
    "no task": (message(headers__task=...), "message-unreadable"),
    "another task": (message(headers__task="os.system"), "message-foreign"),
    "a task of Celery's own": (message(headers__task="celery.starmap"), "message-foreign"),
    "no id": (message(headers__id=...), "message-unreadable"),
    "an id of a number": (message(headers__id=7), "message-unreadable"),
    "retries of text": (message(headers__retries="many"), "message-unreadable"),
    "negative retries": (message(headers__retries=-1), "message-unreadable"),
    "a million retries": (message(headers__retries=1_000_000), "message-unreadable"),
    "an eta of text": (message(headers__eta="soon"), "message-unreadable"),
    "an eta of a number": (message(headers__eta=12), "message-unreadable"),
    "expired": (message(headers__expires=in_time(-60)), "message-foreign"),
    "expires some day": (message(headers__expires="some day"), "message-foreign"),
    "time limits": (message(headers__timelimit=[0.001, 0.001]), "message-foreign"),
    "time limits of text": (message(headers__timelimit="xy"), "message-foreign"),
    "a group": (message(headers__group="g"), "message-foreign"),
    "stamps": (message(headers__stamped_headers=["s"]), "message-foreign"),
}

BAD_BODIES: Final = {
    "a body of a number": (message(body=7), "message-unreadable"),
    "a body that is no JSON": (message(body="garbage"), "message-unreadable"),
    "an empty body": (message(body=""), "message-unreadable"),
    "a deep body": (message(body="[" * 100_000), "message-unreadable"),
    "a body of half characters": (message(body='["\ud800"]'), "message-unreadable"),
    "a value that kombu cannot make": (
        message(body='[[{"__type__": "uuid", "__value__": {"hex": "x"}}], {}, {}]'),
        "message-unreadable",
    ),
    "no argument": (message(body=body()), "message-unreadable"),
    "two arguments": (message(body=body(job_of(0, 5).to_message(), 2)), "message-unreadable"),
    "an argument of text": (message(body=body("garbage")), "message-unreadable"),
    "a named argument": (
        message(body=body(job_of(0, 5).to_message(), named={"a": 1})),
        "message-unreadable",
    ),
    "a callback": (
        message(body=body(job_of(0, 5).to_message(), canvas={"callbacks": [{"task": "t"}]})),
        "message-foreign",
    ),
    "an errback": (
        message(body=body(job_of(0, 5).to_message(), canvas={"errbacks": [{"task": "t"}]})),
        "message-foreign",
    ),
    "a chord": (
        message(body=body(job_of(0, 5).to_message(), canvas={"chord": {"task": "t"}})),
        "message-foreign",
    ),
    "a header in the body": (
        message(body=body(job_of(0, 5).to_message(), canvas={"retries": None})),
        "message-foreign",
    ),
    "an empty job": (message(body=body({})), "message-unreadable"),
    "no run": (with_job(run=None), "message-unreadable"),
    "a run outside the folder": (with_job(run="../x"), "message-unreadable"),
    "no key": (with_job(key=None), "message-unreadable"),
    "a key of another form": (with_job(key="k" * 32), "message-unreadable"),
    "a job of another spec": (with_job(spec="0" * 32), "message-foreign"),
}


def push(bench: Bench, items: Sequence[bytes]) -> None:
    with bench.redis.client() as client:
        for item in items:
            client.lpush(QUEUE, item)


def unreadable(bench: Bench) -> list[dict[str, Any]]:
    """The lines of the worker's ledger of unreadable messages."""
    ledger = bench.runs / ".unreadable" / "w.jsonl"
    return [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []


def await_good_job(bench: Bench) -> None:
    """Sends a good job and sees it stored, by the worker that the test began with."""
    push(bench, [Envelope(SPEC.digest).wrap(good_job())])
    bench.wait_until(lambda: good_job().key in bench.stored_keys() and bench.num_messages() == 0)
    assert bench.worker.is_running


@pytest.mark.parametrize("garbage", [NO_MESSAGE, BAD_ENVELOPES, BAD_BODIES])
def test_garbage_goes_to_the_ledger(bench: Bench, garbage: dict[str, tuple[bytes, str]]) -> None:
    """Item by item, with its kind, size and beginning; the worker goes on with the next."""
    push(bench, [item for item, _ in garbage.values()])
    await_good_job(bench)
    lines = unreadable(bench)
    assert [line["kind"] for line in lines] == [kind for _, kind in garbage.values()]
    for line, (item, _) in zip(lines, garbage.values(), strict=True):
        assert (line["num_bytes"], line["queue"], line["worker"]) == (len(item), QUEUE, "w")
        assert line["excerpt"] == item.decode(errors="replace")[:1_000]
        assert len(line["message"]) <= 1_000
        assert datetime.fromisoformat(line["time"]).tzinfo is UTC
    assert bench.dead_letters() == []


def test_a_bad_job_goes_to_the_ledger_of_its_run(bench: Bench) -> None:
    """Where the message says of which sample it is: a dead letter of that sample."""
    good = job_of(0, 5).to_message()
    jobs = [
        good | {"version": 99},
        good | {"key": "ab" * 16},
        good | {"tokenizer": "\ud800"},
        good | {"token_ids": "?"},
        {name: good[name] for name in ("run", "key", "spec")},
    ]
    push(bench, [message(body=body(job)) for job in jobs])
    await_good_job(bench)
    letters = bench.dead_letters()
    assert sorted(letter.key for letter in letters) == sorted(str(job["key"]) for job in jobs)
    assert {letter.kind for letter in letters} == {"job-unreadable"}
    assert unreadable(bench) == []


def test_a_message_of_120_mb_is_taken_out_unread(bench: Bench) -> None:
    """A list of numbers of that size would take some GB when parsed; Redis refuses larger ones."""
    worker = psutil.Process(bench.worker.pid)
    bench.wait_until(lambda: len(bench.children()) == 2)
    most_before = peak_bytes(worker)
    item = b"[" + b"1," * (60 * MB) + b"1]"
    with bench.redis.client() as client:
        client.lpush(QUEUE, item)
        with pytest.raises(redis.RedisError):
            client.lpush(QUEUE, item + item)
    await_good_job(bench)
    (line,) = unreadable(bench)
    assert (line["kind"], line["num_bytes"]) == ("message-oversized", len(item))
    # redis-py makes three copies of an item as it reads it. None of them stays.
    assert peak_bytes(worker) - most_before < 4 * len(item)
    assert worker.memory_info().rss < most_before + len(item)


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process ever had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def test_two_messages_with_one_delivery_tag_are_two(bench: Bench) -> None:
    """While both are in hand, Redis keeps both; each is acknowledged for itself."""
    jobs = [job_of(0, 5), job_of(1, 6)]
    both_asked, go_on = Event(), Event()

    def hold(_key: str, _attempt: int) -> None:
        if len(bench.server.asked) == 2:
            both_asked.set()
        go_on.wait(30)

    bench.server.behaviour = hold
    push(bench, [message(job, properties__delivery_tag="same") for job in jobs])
    assert both_asked.wait(60)
    with bench.redis.client() as client:
        assert client.hlen(taken_by(bench)) == 2
    go_on.set()
    bench.wait_until(lambda: bench.stored_keys() == {job.key for job in jobs})
    await_good_job(bench)


@pytest.mark.parametrize(
    "eta", ["0001-01-01T00:00:00+14:00", "2020-01-01T00:00:00", "9999-12-31T23:59:59"]
)
def test_a_message_with_an_impossible_time_is_due_now(bench: Bench, eta: str) -> None:
    """Also one so long ago that its time zone has no such day."""
    push(bench, [message(headers__eta=eta)])
    await_good_job(bench)
    bench.wait_until(lambda: job_of(0, 5).key in bench.stored_keys())


def test_a_ledger_that_cannot_be_written_stops_the_worker(bench: Bench) -> None:
    """The message goes back: it leaves the queue only when its line is durable."""
    (bench.runs / ".unreadable").write_text("in the way")
    push(bench, [b"garbage"])
    assert bench.worker.wait(60) == 3
    with bench.redis.client() as client:
        assert client.lrange(QUEUE, 0, -1) == [b"garbage"]
    (bench.runs / ".unreadable").unlink()
    bench.worker = bench.start_worker()
    await_good_job(bench)
    assert [line["excerpt"] for line in unreadable(bench)] == ["garbage"]


def taken_by(bench: Bench) -> str:
    """The hash of what the worker took and did not acknowledge."""
    return taken_name(f"{read_place(bench.runs)}.w")


def test_garbage_in_hand_does_not_keep_a_worker_from_starting(bench: Bench) -> None:
    """What is a message among it comes back."""
    await_good_job(bench)
    bench.worker.stop()
    lost = json.loads(message())
    entries = [b"garbage", b"[" * 100_000, b"[]", b"7", b'[7, "", ""]', b"[[], 1, 2]"]
    entries += [json.dumps(entry).encode() for entry in ([7, "", QUEUE], [lost, "", QUEUE])]
    with bench.redis.client() as client:
        for number, entry in enumerate(entries):
            client.hset(taken_by(bench), f"tag-{number}", entry)
            client.zadd(f"index.{taken_by(bench)}", {f"tag-{number}": number})
    bench.worker = bench.start_worker()
    bench.wait_until(lambda: job_of(0, 5).key in bench.stored_keys())
    garbage = [entry.decode()[:1000] for entry in entries[:6]]
    # The seventh is a message in form, and goes through the queue once more.
    assert sorted(line["excerpt"] for line in unreadable(bench)) == sorted([*garbage, "7"])
    with bench.redis.client() as client:
        assert not client.exists(taken_by(bench))
    assert bench.worker.is_running


def test_the_producer_reads_on_past_garbage(bench: Bench) -> None:
    """In the queue, and in what workers hold; the ledger of garbage is no run to the announcer."""
    tables = NO_MESSAGE, BAD_ENVELOPES, BAD_BODIES
    everything = [item for table in tables for item, _ in table.values()]
    await_good_job(bench)
    bench.worker.stop()
    push(bench, [*everything, Envelope(SPEC.digest).wrap(good_job())])
    with bench.redis.client() as client:
        client.set(alive_name(taken_by(bench)), b"")
        for number, item in enumerate(everything):
            entry = json.dumps([item.decode("latin1"), "", QUEUE])
            client.hset(taken_by(bench), f"raw-{number}", item)
            client.hset(taken_by(bench), f"kept-{number}", entry)
    with Broker(bench.redis.url) as broker:
        prompts = queued_prompts(broker, SPEC.digest, RUN)
    # Of a bad envelope with a good job it may or may not be said that it is queued.
    assert bytes.fromhex(good_job().key) in prompts.waiting
    assert prompts.waiting <= {bytes.fromhex(job.key) for job in (good_job(), job_of(0, 5))}
    with bench.redis.client() as client:
        client.delete(taken_by(bench))
    bench.worker = bench.start_worker()
    await_good_job(bench)
    assert len(unreadable(bench)) == len(everything)
    with bench.redis.client() as client:
        announced = announced_key(read_place(bench.runs))
        bench.wait_until(lambda: client.hkeys(announced) == [RUN.encode()])
