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
    return Job.of("a-run", SPEC, prompt, "cd" * 16, "ef" * 16, attempt=2)


def packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def test_a_job_survives_the_queue() -> None:
    """What comes out of JSON is what went in."""
    assert Job.from_message(json.loads(json.dumps(job().to_message()))) == job()


def test_flower_shows_words_not_ids() -> None:
    """Key, tokens, run and attempt; nothing that is packed."""
    assert str(job()) == f"{job().key}, 6 tokens, run a-run, attempt 2"


@pytest.mark.parametrize(
    ("largest", "id_bytes"),
    [
        (0, 1),
        (255, 1),
        (256, 2),
        (65_535, 2),
        (65_536, 3),
        (2**24 - 1, 3),
        (2**24, 4),
        (2**31 - 1, 4),
    ],
)
def test_ids_take_as_few_bytes_as_the_largest_needs(largest: int, id_bytes: int) -> None:
    """And come back as they were, in little-endian order in between."""
    ids = [0, largest, 1, largest // 2]
    message = Job.of("r", SPEC, Prompt(array("i", ids), ())).to_message()
    assert message["id_bytes"] == id_bytes
    raw = zlib.decompress(base64.b64decode(str(message["token_ids"])))
    assert raw == b"".join(number.to_bytes(id_bytes, "little") for number in ids)
    assert list(Job.from_message(message).prompt.token_ids) == ids


def test_ids_are_packed() -> None:
    """4,000 tokens of a large vocabulary take less than half of their JSON list."""
    ids = [(i * 7919) % 150_000 for i in range(4000)]
    message = Job.of("r", SPEC, Prompt(array("i", ids), ())).to_message()
    assert len(str(message["token_ids"])) < len(json.dumps(ids)) / 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version 2"),
        ({"version": True}, "not int"),
        ({"key": "0" * 32}, "holds another prompt"),
        ({"run": "../escape"}, "run name"),
        ({"run": ""}, "run name"),
        ({"spec": "no-digest"}, "spec digest"),
        ({"tokenizer": "no-digest"}, "tokenizer_digest"),
        ({"template": 3}, "not str"),
        ({"attempt": 0}, "attempt 0"),
        ({"attempt": "1"}, "not int"),
        ({"loss_spans": [0]}, "not pairs"),
        ({"loss_spans": [0, 99]}, "beyond"),
        ({"loss_spans": [0, "1"]}, "integers"),
        ({"token_ids": "%%%"}, "cannot read"),
        ({"token_ids": base64.b64encode(b"not zlib").decode()}, "cannot read"),
        ({"id_bytes": 2, "token_ids": packed(b"123")}, "in the middle of one"),
        ({"id_bytes": 4, "token_ids": packed(b"\xff" * 4)}, "negative"),
        ({"id_bytes": 0}, "0 bytes"),
        ({"id_bytes": 5}, "5 bytes"),
        ({"token_ids": packed(b"")}, "empty"),
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


def test_what_is_said_of_garbage_is_bounded() -> None:
    """A ledger keeps it, and Flower is sent it."""
    with pytest.raises(RejectError) as caught:
        Job.from_message(job().to_message() | {"x" * 1_000_000: 1})
    assert len(caught.value.message) < 1000


def test_a_bomb_is_not_unpacked() -> None:
    """A small message cannot claim gigabytes of ids."""
    bomb = packed(bytes(MAX_TOKENS + 1))
    assert job().to_message()["id_bytes"] == 1
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
    # Only the run's name and the attempt are outside of the key.
    assert field in ("run", "attempt")
    assert read.key == job().key
