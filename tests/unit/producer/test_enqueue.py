"""What enqueuing puts into a real Redis."""

import base64
import json
from typing import Any

import pytest
from statetap_contract import TASK_NAME, Job, StatetapError, queue_name
from statetap_local.services import LocalRedis
from statetap_producer.enqueue import EnqueueOutcome, enqueue
from statetap_producer.run_folder import RunFolder

from .conftest import give_up, prompts_of, store


def messages_in(redis_server: LocalRedis, run: RunFolder) -> list[dict[str, Any]]:
    """Messages in the run's queue, oldest first, as any Redis client sees them."""
    with redis_server.client() as client:
        raw: Any = client.lrange(queue_name(run.read_record().inputs.spec.digest), 0, -1)
    return [json.loads(message) for message in reversed(raw)]


def fill(redis_server: LocalRedis, run: RunFolder) -> EnqueueOutcome:
    return enqueue(run, redis_server.url, lambda _: None)


def test_every_pending_prompt_becomes_a_message(redis_server: LocalRedis, run: RunFolder) -> None:
    """The messages hold the planned prompts, in order, under their keys."""
    planned = prompts_of(run)
    assert fill(redis_server, run) == EnqueueOutcome(2, 0, 0, 0)
    messages = messages_in(redis_server, run)
    headers = [message["headers"] for message in messages]
    assert [(h["task"], h["id"]) for h in headers] == [(TASK_NAME, row.key) for row in planned]
    for message, row in zip(messages, planned, strict=True):
        positional, named, _ = json.loads(base64.b64decode(message["body"]))
        job = Job.from_message(positional[0])
        assert (job.key, job.run, job.prompt) == (row.key, "demo", row.prompt)
        record = json.loads(run.record_file.read_text())
        assert job.tokenizer_digest == record["tokenizer_digest"]
        assert job.template_digest == record["template_digest"]
        assert (len(positional), named) == (1, {})


def test_flower_shows_words_not_ids(redis_server: LocalRedis, run: RunFolder) -> None:
    """The message's short form names key, tokens and run, and holds no packed ids."""
    fill(redis_server, run)
    row = prompts_of(run)[0]
    headers = messages_in(redis_server, run)[0]["headers"]
    assert headers["argsrepr"] == f"{row.key}, {row.prompt.num_tokens} tokens, run demo"


def test_stored_and_dead_prompts_are_left_out(redis_server: LocalRedis, run: RunFolder) -> None:
    """What is settled is not queued again."""
    first, second = prompts_of(run)
    store(run, first)
    assert fill(redis_server, run) == EnqueueOutcome(1, 1, 0, 0)
    assert [m["headers"]["id"] for m in messages_in(redis_server, run)] == [second.key]
    give_up(run, second.key)
    assert fill(redis_server, run) == EnqueueOutcome(0, 1, 1, 1)
    assert len(messages_in(redis_server, run)) == 1


def test_progress_counts_messages(redis_server: LocalRedis, run: RunFolder) -> None:
    """The callback hears of every message."""
    heard: list[int] = []
    enqueue(run, redis_server.url, heard.append)
    assert heard == [1, 2]


def test_a_redis_without_memory_says_so(redis_server: LocalRedis, run: RunFolder) -> None:
    """A full Redis is a sentence that says what to do."""
    with redis_server.client() as client:
        client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StatetapError, match="no memory left") as caught:
                fill(redis_server, run)
        finally:
            client.config_set("maxmemory", 0)
    assert (caught.value.kind, caught.value.exit_code) == ("redis-full", 3)
    assert redis_server.password not in caught.value.message
