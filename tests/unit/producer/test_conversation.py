"""One row of a dataset: what cannot be written into a small file of ``test_input_table``."""

import datetime as dt
import json
import pickle
from array import array

import pytest
from statetap_contract import RejectError
from statetap_producer.reading.conversation import (
    Conversation,
    PlainText,
    Row,
    TokenIds,
    parse_row,
)

ASKED = Conversation(
    ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}), None
)


def kind_of(raw: bytes | dict[str, object]) -> str:
    with pytest.raises(RejectError) as caught:
        parse_row(raw)
    return caught.value.kind


@pytest.mark.parametrize("field", ["conversations", "messages"])
@pytest.mark.parametrize(("speaker", "text"), [("role", "content"), ("from", "value")])
def test_a_row_means_the_same_decoded_and_as_a_line(field: str, speaker: str, text: str) -> None:
    """Fields that were decoded by pyarrow are read as a line of JSON is."""
    row = {field: [{speaker: "human", text: "Hi"}, {speaker: "gpt", text: "Hello"}]}
    assert parse_row(row) == parse_row(json.dumps(row).encode()) == Row(ASKED, None)


def test_fields_of_both_namings_that_are_null_do_no_harm() -> None:
    """A table that holds both namings has nulls for one of them."""
    turns = [
        {"from": "human", "value": "Hi", "role": None, "content": None},
        {"from": None, "value": None, "role": "assistant", "content": "Hello"},
    ]
    assert parse_row({"messages": turns}).content == ASKED


def test_a_rejection_is_passed_on() -> None:
    """A row that could not be read at all keeps the reason that its reader gave."""
    rejection = RejectError("row-too-large", "too large")
    with pytest.raises(RejectError, match="too large") as caught:
        parse_row(rejection)
    assert caught.value.kind == "row-too-large"


@pytest.mark.parametrize(
    ("given", "taken"),
    [("abc", "abc"), (12, "12"), (None, None), (True, None), ([1], None), ("\ud800", None)],
)
def test_an_id_is_text_or_a_number_or_nothing(given: object, taken: str | None) -> None:
    """An odd id costs the id, not the row."""
    raw = json.dumps({"id": given, "prompt": "Hi", "response": "Hello"}).encode()
    assert parse_row(raw) == Row(ASKED, taken)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"[" * 100_000, "row-not-json"),
        (b"9" * 5000, "row-not-json"),
        (b"", "row-not-json"),
        (b"\xed\xa0\x80", "row-not-utf8"),
        (b'{"messages": "' + b"[" * 100_000 + b'"}', "shape-unknown"),
        (b'{"tools": "' + b"[" * 100_000 + b'", "prompt": "Hi"}', "tools-unreadable"),
        (b'{"prompt": "Hi", "tools": ' + b"[" * 900 + b"]" * 900 + b"}", "tools-unreadable"),
    ],
)
def test_depth_and_length_do_no_harm(raw: bytes, kind: str) -> None:
    """JSON that no parser takes is a bad row and nothing worse."""
    assert kind_of(raw) == kind


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": b"Hi"}, "content-not-text"),
        ({"prompt": dt.date(2026, 1, 1), "response": "Hello"}, "content-not-text"),
        ({"input_ids": [dt.date(2026, 1, 1)]}, "ids-unreadable"),
        ({"input_ids": [5], "loss_mask": [b"1"]}, "mask-unreadable"),
        ({"prompt": "Hi", "tools": [{"since": dt.date(2026, 1, 1)}]}, "tools-unreadable"),
        (
            {"messages": [{"role": "gpt", "tool_calls": [{"name": "f", "arguments": {"a": b""}}]}]},
            "tool-calls-unreadable",
        ),
    ],
)
def test_values_that_only_a_table_has_are_rejected(row: dict[str, object], kind: str) -> None:
    """Bytes and dates of a Parquet column are no text, and no template can write them."""
    assert kind_of(row) == kind


def test_padding_makes_no_difference_wherever_it_is() -> None:
    """Every number of pads at either end, masked or labelled, leaves the same prompt."""
    ids, mask, labels = [5, 6, 7], [0, 1, 1], [-100, 6, 7]
    expected = TokenIds(array("i", ids), ((1, 3),))
    for before in range(3):
        for after in range(3):
            row: dict[str, object] = {
                "input_ids": [0] * before + ids + [0] * after,
                "attention_mask": [0] * before + [1] * 3 + [0] * after,
            }
            masked = row | {"loss_mask": [1] * before + mask + [1] * after}
            labelled = row | {"labels": [-100] * before + labels + [0] * after}
            assert parse_row(masked).content == parse_row(labelled).content == expected


def test_a_system_prompt_is_a_system_message() -> None:
    """It goes by either name; two that differ are an open question."""
    row: dict[str, object] = {"prompt": "Hi", "response": "Hello"}
    brief = Conversation(({"role": "system", "content": "Be brief."}, *ASKED.messages), None)
    assert parse_row(row | {"system_prompt": "Be brief."}).content == brief
    assert parse_row(row | {"system_prompt": "Be brief.", "system": "Be brief."}).content == brief
    assert kind_of(row | {"system_prompt": "Be brief.", "system": "Be kind."}) == "system-twice"


def test_a_long_mask_becomes_its_spans() -> None:
    """Spans cover exactly the ones of the mask, up to both of its ends."""
    mask = [1] * 3 + [0] * 1000 + [1] * 2000 + [0] + [1]
    row = parse_row({"input_ids": list(range(len(mask))), "loss_mask": mask})
    expected = TokenIds(array("i", range(len(mask))), ((0, 3), (1003, 3003), (3004, 3005)))
    assert row.content == expected


def test_labels_of_the_largest_id_are_no_mark() -> None:
    """Only -100 means that no loss is taken."""
    row = parse_row(b'{"input_ids": [0, 2147483647], "labels": [0, 2147483647]}')
    assert row.content == TokenIds(array("i", [0, 2147483647]), ((0, 2),))


def test_a_row_is_left_as_it_was() -> None:
    """Reading changes nothing in fields that others may hold."""
    row = {"messages": [{"role": "gpt", "tool_calls": [{"name": "f", "arguments": "{}"}]}]}
    before = json.dumps(row)
    parse_row(row)
    assert json.dumps(row) == before


@pytest.mark.parametrize("content", [ASKED, PlainText("Hi"), TokenIds(array("i", [1]), ())])
def test_rows_can_be_sent_to_other_processes(content: Conversation | PlainText | TokenIds) -> None:
    """A row survives pickling."""
    row = Row(content, "a")
    assert pickle.loads(pickle.dumps(row)) == row  # noqa: S301 - our own
