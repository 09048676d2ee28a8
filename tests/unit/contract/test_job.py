"""The message on the queue."""

import base64
import json
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statetap_contract import Job, Prompt, RejectError
from statetap_contract.job import MAX_TOKENS

SPEC = "ab" * 16


def job() -> Job:
    prompt = Prompt(array("i", [3, 1, 4, 1, 5, 9]), ((2, 4), (5, 6)))
    return Job.of("a-run", SPEC, prompt, tokenizer_digest="cd" * 16, template_digest="ef" * 16)


def test_a_job_survives_the_queue() -> None:
    """What comes out of JSON is what went in."""
    assert Job.from_message(json.loads(json.dumps(job().to_message()))) == job()


def test_ids_are_packed() -> None:
    """4,000 tokens of a large vocabulary take less than half of their JSON list."""
    ids = [(i * 7919) % 150_000 for i in range(4000)]
    message = Job.of("r", SPEC, Prompt(array("i", ids), ())).to_message()
    assert len(str(message["token_ids"])) < len(json.dumps(ids)) / 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 3}, "version 3"),
        ({"version": True}, "not int"),
        ({"key": "0" * 32}, "holds another prompt"),
        ({"run": "../escape"}, "run name"),
        ({"run": ""}, "run name"),
        ({"spec": "no-digest"}, "spec digest"),
        ({"tokenizer": "no-digest"}, "tokenizer_digest"),
        ({"template": 3}, "not str"),
        ({"loss_spans": [0]}, "not pairs"),
        ({"loss_spans": [0, 99]}, "beyond"),
        ({"loss_spans": [0, "1"]}, "integers"),
        ({"token_ids": "%%%"}, "cannot read"),
        ({"token_ids": base64.b64encode(b"not zlib").decode()}, "cannot read"),
        ({"token_ids": base64.b64encode(zlib.compress(b"123")).decode()}, "cannot read"),
        ({"token_ids": base64.b64encode(zlib.compress(b"")).decode()}, "empty"),
        ({"extra": 1}, "unknown fields: extra"),
    ],
)
def test_unreadable_messages_are_rejected_with_a_reason(
    change: dict[str, object], reason: str
) -> None:
    """A message that cannot be read now never can: no retry."""
    with pytest.raises(RejectError, match=reason) as caught:
        Job.from_message(job().to_message() | change)
    assert caught.value.kind == "job-unreadable"


def test_a_bomb_is_not_unpacked() -> None:
    """A small message cannot claim gigabytes of ids."""
    bomb = base64.b64encode(zlib.compress(bytes(4 * (MAX_TOKENS + 1)), 9)).decode()
    with pytest.raises(RejectError, match="exceed"):
        Job.from_message(job().to_message() | {"token_ids": bomb})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(_JSON)
def test_any_json_is_a_job_or_rejected(value: Any) -> None:
    """Whatever stands in the queue, nothing but RejectError comes out."""
    with pytest.raises(RejectError):
        Job.from_message(value)


@given(st.sampled_from(sorted(job().to_message())), _JSON)
def test_any_field_may_be_garbage(field: str, value: Any) -> None:
    """One bad field is enough to reject, and never more than rejects."""
    message = job().to_message()
    if message[field] == value and type(message[field]) is type(value):
        return
    try:
        read = Job.from_message(message | {field: value})
    except RejectError:
        return
    # Only the run's name is outside of the key.
    assert field == "run"
    assert read.key == job().key
