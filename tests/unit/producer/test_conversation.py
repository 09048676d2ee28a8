"""One line of a dataset: what is read, what is rejected."""

import json

import pytest
from statetap_contract import RejectError
from statetap_producer.conversation import Message, parse_conversation

ASKED = (Message("user", "Hi"), Message("assistant", "Hello"))


@pytest.mark.parametrize(
    "row",
    [
        {
            "conversations": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello"},
            ]
        },
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"messages": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"prompt": "Hi", "response": "Hello"},
        {
            "conversations": None,
            "messages": [{"role": "user", "content": "Hi"}, {"role": "gpt", "content": "Hello"}],
        },
    ],
)
def test_every_shape_gives_the_same_conversation(row: dict[str, object]) -> None:
    """However a row is written, its turns come out the same."""
    conversation = parse_conversation(json.dumps(row).encode(), 7)
    assert (conversation.messages, conversation.line) == (ASKED, 7)


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc", "abc"), (12, "12"), (None, None), (True, None), ([1], None), ("\ud800", None)],
)
def test_an_id_is_text_or_a_number_or_nothing(given: object, taken: str | None) -> None:
    """An odd id costs the id, not the row."""
    raw = json.dumps({"id": given, "prompt": "Hi", "response": "Hello"}).encode()
    assert parse_conversation(raw, 1).source_id == taken


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"\xff{}", "row-not-utf8"),
        (b"{", "row-not-json"),
        (b"[" * 100_000, "row-not-json"),
        (b"9" * 5000, "row-not-json"),
        (b"[1]", "row-not-object"),
        (b"null", "row-not-object"),
        (b"{}", "shape-unknown"),
        (b'{"conversations": "text"}', "shape-unknown"),
        (b'{"prompt": "Hi"}', "shape-unknown"),
        (b'{"messages": []}', "conversation-empty"),
        (b'{"messages": ["Hi"]}', "turn-not-object"),
        (b'{"messages": [{"role": "wizard", "content": "Hi"}]}', "role-unknown"),
        (b'{"messages": [{"role": ["user"], "content": "Hi"}]}', "role-unknown"),
        (b'{"messages": [{"content": "Hi"}]}', "role-unknown"),
        (b'{"messages": [{"role": "user"}]}', "content-not-text"),
        (b'{"messages": [{"role": "user", "content": ["Hi"]}]}', "content-not-text"),
        (b'{"messages": [{"role": "user", "content": "\\ud83d"}]}', "content-not-text"),
        (b'{"prompt": "Hi", "response": null}', "content-not-text"),
    ],
)
def test_a_row_that_is_no_conversation_is_rejected_by_kind(raw: bytes, kind: str) -> None:
    """A bad row says what is wrong with it and nothing else goes wrong."""
    with pytest.raises(RejectError) as caught:
        parse_conversation(raw, 1)
    assert caught.value.kind == kind
