"""What becomes of every kind of dataset: a table of small files with their exact outcome.

The files lie in ``data/inputs``, whose README says how each was made.
"""

import gzip
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from statetap_contract import RejectError, StatetapError
from statetap_producer.reading.conversation import Conversation, PlainText, Row, TokenIds, parse_row
from statetap_producer.reading.dataset import Dataset, RawRow

INPUTS = Path(__file__).parent / "data" / "inputs"

Content = Conversation | PlainText | TokenIds


def chat(*turns: dict[str, Any], tools: tuple[dict[str, Any], ...] | None = None) -> Conversation:
    return Conversation(turns, tools)


def turn(role: str, content: str | None, **fields: object) -> dict[str, Any]:
    return {"role": role, "content": content} | fields


def asked(question: str, answer: str = "Hello") -> Conversation:
    return chat(turn("user", question), turn("assistant", answer))


def ids(*token_ids: int, loss: tuple[tuple[int, int], ...]) -> TokenIds:
    return TokenIds(array("i", token_ids), loss)


HI, HO, HM = asked("Hi"), asked("Ho"), asked("Hm")
BRIEF = turn("system", "Be brief.")
WITH_SYSTEM = chat(BRIEF, *HI.messages)

#: The second row of the Parquet and Arrow files: fields that are null in Arrow are not there.
TWO_CALLS = chat(
    turn("user", "1+2?"),
    turn(
        "assistant",
        None,
        tool_calls=[
            {"type": "function", "id": "c1", "function": {"name": "sum", "arguments": {"a": 1}}},
            {
                "type": "function",
                "id": "c2",
                "function": {"name": "time", "arguments": {"city": "Rome"}},
            },
        ],
    ),
)

SUM = {"type": "function", "function": {"name": "sum"}}
SUM_OF_1 = [{"type": "function", "function": {"name": "sum", "arguments": {"a": 1}}}]

#: By source: what each row is, under its line or under ``file:line``: its content, the same with
#: its id, or the kind of its rejection.
READ: dict[str, dict[str, Content | Row | str]] = {
    # shapes
    "conversations.jsonl": {"1": Row(HI, "a1"), "2": Row(HI, "7")},
    "messages.jsonl": {"1": HI, "2": HI},
    "both-lists.jsonl": {"1": HI, "2": HI, "3": HI, "4": HI},
    "prompt-response.jsonl": {"1": HI, "2": HI, "3": WITH_SYSTEM, "4": HI},
    "alpaca.jsonl": {"1": asked("Add.\n\n1 and 2", "3"), "2": HI, "3": HI, "4": HI},
    "history.jsonl": {
        "1": chat(BRIEF, *asked("Ho", "Yes").messages, *asked("Hm", "No").messages, *HI.messages),
        "2": chat(*asked("Ho", "Yes").messages, *HI.messages),
        "3": chat(*asked("Ho", "Yes").messages, turn("user", "Hi")),
        "4": HI,
        "5": HI,
        **{str(line): "history-unreadable" for line in range(6, 12)},
        "12": HI,
    },
    "turns-and-answer.jsonl": {
        **{str(line): HI for line in range(1, 9)},
        "9": "answer-twice",
        "10": "answer-twice",
        "11": "content-not-text",
        "12": "answer-twice",
        "13": HI,
        "14": HI,
    },
    "prompt-in-text.jsonl": {
        "1": HI,
        "2": HI,
        "3": chat(turn("user", "Hi")),
        "4": asked("[1] Hi", "[]"),
        "5": asked('[{"city": "Rome"}]'),
    },
    "text.jsonl": {
        "1": PlainText("Once upon a time."),
        "2": "conversation-empty",
        "3": "content-not-text",
    },
    "user-last.jsonl": {
        "1": chat(turn("user", "Hi")),
        "2": chat(turn("user", "Hi")),
        "3": chat(*HI.messages, turn("user", "Hm")),
    },
    "bare-lists.jsonl": {"1": HI, "2": HI, "3": "row-not-object"},
    "json-in-text.jsonl": {
        "1": Conversation(HI.messages, ({"name": "sum"},)),
        "2": "shape-unknown",
    },
    "input-ids.jsonl": {
        "1": ids(5, 6, 7, loss=((0, 3),)),
        "2": ids(5, 6, 7, 8, 9, loss=((1, 3), (4, 5))),
        "3": ids(5, 6, 7, loss=((0, 1),)),
        "4": ids(5, 6, 7, loss=((2, 3),)),
        "5": ids(5, 6, 7, loss=((1, 3),)),
        "6": ids(5, 6, 7, loss=((1, 3),)),
        "7": ids(5, 6, loss=()),
        "8": Row(ids(5, 6, loss=((0, 2),)), "both"),
    },
    "padded-ids.jsonl": {
        "1": ids(5, 6, 7, loss=((1, 3),)),
        "2": ids(5, 6, 7, loss=((1, 3),)),
        "3": ids(5, 6, loss=((0, 2),)),
        "4": ids(5, 6, loss=((1, 2),)),
        "5": ids(5, 6, loss=((0, 2),)),
        "6": "attention-mask-hole",
        "7": "mask-length",
        "8": "mask-unreadable",
        "9": "mask-unreadable",
        "10": "mask-unreadable",
        "11": "ids-unreadable",
        "12": "mask-length",
        "13": "labels-differ",
    },
    "loss-masks.jsonl": {
        "1": ids(5, 6, 7, loss=((1, 3),)),
        "2": ids(5, 6, 7, loss=((1, 3),)),
        "3": ids(5, 6, 7, loss=((1, 3),)),
        "4": ids(5, 6, 7, loss=((1, 3),)),
        "5": "masks-differ",
        "6": "masks-differ",
        "7": "mask-length",
        "8": "mask-unreadable",
    },
    "roles.jsonl": {
        "1": chat(
            turn("system", "1"),
            turn("developer", "2"),
            turn("user", "3"),
            turn("user", "4"),
            *(turn("assistant", str(number)) for number in range(5, 11)),
            *(turn("tool", str(number)) for number in range(11, 14)),
        ),
        "2": "role-unknown",
        "3": "role-unknown",
        "4": "role-unknown",
    },
    "system.jsonl": {
        "1": WITH_SYSTEM,
        "2": HI,
        "3": chat(BRIEF, turn("user", "Hi")),
        "4": "system-twice",
        "5": "content-not-text",
    },
    "tool-calls.jsonl": {
        "1": chat(
            turn("user", "1+2?"),
            turn(
                "assistant",
                None,
                tool_calls=[
                    {
                        "type": "function",
                        "id": "c1",
                        "function": {"name": "sum", "arguments": {"a": 1, "b": None}},
                    }
                ],
            ),
            turn("tool", "3", tool_call_id="c1", name="sum"),
            turn("assistant", "3"),
            tools=(
                {
                    "type": "function",
                    "function": {"name": "sum", "parameters": {"type": "object"}},
                },
            ),
        ),
        "2": chat(
            turn("user", "1+2?"),
            turn(
                "assistant",
                "Well.",
                tool_calls=[
                    {
                        "type": "function",
                        "id": "9",
                        "function": {"name": "sum", "arguments": {"a": 1}},
                    },
                    {"type": "function", "function": {"name": "now", "arguments": {}}},
                ],
            ),
        ),
        "3": chat(
            turn(
                "assistant",
                None,
                tool_calls=[{"type": "function", "function": {"name": "now", "arguments": {}}}],
            )
        ),
    },
    "function-calls.jsonl": {
        "1": chat(
            turn("user", "Hi"),
            turn("assistant", None, tool_calls=SUM_OF_1),
            turn("tool", "1", name="sum"),
            turn("assistant", "Hello"),
            tools=(
                {
                    "type": "function",
                    "function": {"name": "sum", "parameters": {"type": "object"}},
                },
            ),
        ),
        "2": chat(
            turn("user", "Hi"), turn("assistant", "Well.", tool_calls=SUM_OF_1), tools=(SUM,)
        ),
        "3": chat(turn("user", "Hi"), turn("assistant", "", tool_calls=SUM_OF_1)),
        "4": HI,
        "5": HI,
        "6": "tool-calls-unreadable",
        "7": "tool-calls-unreadable",
        "8": Conversation(HI.messages, (SUM,)),
        "9": "tools-twice",
        "10": "tools-unreadable",
    },
    "refusals.jsonl": {"1": "turn-refused", "2": "turn-refused", "3": HI, "4": HI},
    "turns-without-loss.jsonl": {
        **{str(line): "turn-without-loss" for line in range(1, 7)},
        "7": HI,
    },
    "reasoning.jsonl": {
        "1": chat(turn("user", "Hi"), turn("assistant", "Hello", reasoning_content="A greeting.")),
        "2": chat(
            turn("user", "Hi"),
            turn("assistant", "Hello", reasoning="A greeting.", thinking="Greet."),
        ),
        "3": "content-not-text",
    },
    "text-parts.jsonl": {"1": HI, "2": "content-not-text", "3": "content-not-text"},
    "changing-types.jsonl": {"1": Row(HI, "1"), "2": Row(HI, "two"), "3": HI, "4": HI},
    "duplicate-ids.jsonl": {"1": Row(HI, "same"), "2": Row(HI, "same"), "3": Row(HO, "same")},
    # rows with faults
    "bad-rows.jsonl": {
        "1": HI,
        "2": "row-not-json",
        "3": "row-not-object",
        "4": "row-not-object",
        "5": "shape-unknown",
        "6": "shape-unknown",
        "7": "conversation-empty",
        "8": "turn-not-object",
        "9": "content-not-text",
        "10": "content-not-text",
        "11": "shape-unknown",
        "12": "shape-unknown",
        "13": "shape-unknown",
        "14": "content-not-text",
        "15": HI,
    },
    "bad-ids.jsonl": {
        "1": "ids-unreadable",
        "2": "ids-unreadable",
        "3": "ids-unreadable",
        "4": "ids-unreadable",
        "5": "ids-unreadable",
        "6": "token-id-negative",
        "7": "ids-unreadable",
        "8": "mask-length",
        "9": "mask-unreadable",
        "10": "mask-unreadable",
        "11": "mask-unreadable",
        "12": "labels-differ",
        "13": "mask-length",
    },
    "bad-tools.jsonl": {
        "1": "tools-unreadable",
        "2": "tools-unreadable",
        "3": "tools-unreadable",
        "4": "tools-unreadable",
        "5": "tool-calls-unreadable",
        "6": "tool-calls-unreadable",
        "7": "tool-calls-unreadable",
        "8": "tool-calls-unreadable",
        "9": "tool-calls-unreadable",
        "10": "tool-calls-unreadable",
        "11": "tool-calls-unreadable",
        "12": "content-not-text",
    },
    "not-utf8.jsonl": {"1": HI, "2": "row-not-utf8", "3": HI},
    "surrogates.jsonl": {
        "1": asked("😀", "😀"),
        "2": "content-not-text",
        "3": HI,
        "4": "content-not-text",
    },
    # texts
    "bom-crlf-blank.jsonl": {"1": HI, "4": HO, "6": HM},
    "empty.jsonl": {},
    "bom-only.jsonl": {},
    "blank.jsonl": {},
    "lines.json": {"1": HI, "2": HO},
    "array-one-line.json": {"1": HI, "2": HO},
    "array-pretty.jsonl": {"1": Row(HI, "1"), "2": "row-not-object", "3": HI},
    "array-empty.json": {},
    "array-of-turns.jsonl": {"1": HI},
    "array-of-turns-pretty.json": {"1": HI},
    "array-of-turns-and-rows.json": {
        "1": "shape-unknown",
        "2": "shape-unknown",
        "3": HI,
        "4": "shape-unknown",
    },
    "array-of-senders.json": {"1": PlainText("Hi"), "2": HI},
    "one-object.json": {"1": HI},
    "pretty.json": {"1": HI, "2": HO},
    "spread.json": {"1": HI, "2": HO},
    "concatenated.json": {"1": HI, "2": HO},
    # compressed
    "lines.jsonl.gz": {"1": HI, "2": HO},
    "two-members.jsonl.gz": {"1": HI, "2": HO},
    "lines.jsonl.zst": {"1": HI, "2": HO},
    "two-frames.jsonl.zst": {"1": HI, "2": HO},
    "array.json.gz": {"1": HI, "2": HO},
    "gzip-without-suffix.jsonl": {"1": HI, "2": HO},
    "empty.jsonl.gz": {},
    # tables
    "messages.parquet": {"1": Row(HI, "1"), "2": Row(TWO_CALLS, "2")},
    "parquet-without-suffix": {"1": Row(HI, "1"), "2": Row(TWO_CALLS, "2")},
    "stream.arrow": {"1": Row(HI, "1"), "2": Row(TWO_CALLS, "2")},
    "stream.arrow.zst": {"1": Row(HI, "1"), "2": Row(TWO_CALLS, "2")},
    "file.arrow": {"1": Row(HI, "1"), "2": Row(TWO_CALLS, "2")},
    "ids.parquet": {"1": ids(5, 6, 7, loss=((1, 3),)), "2": ids(8, loss=((0, 1),))},
    "map-columns.parquet": {
        "1": chat(
            turn("user", "Hi"),
            turn(
                "assistant",
                None,
                tool_calls=[
                    {
                        "type": "function",
                        "function": {
                            "name": "sum",
                            "arguments": {"a": {"of": "1", "by": {"2": "x", "3": None}}, "b": None},
                        },
                    }
                ],
            ),
            tools=({"name": "sum", "properties": {"a": {"type": "string"}}},),
        ),
        "2": HI,
        "3": "row-unreadable",
    },
    "map-turns.parquet": {"1": HI},
    "json-column.parquet": {"1": HI, "2": "row-unreadable"},
    "json-column.arrow": {"1": HI, "2": "row-unreadable"},
    "not-utf8.parquet": {"1": PlainText("Hi"), "2": "row-unreadable", "3": PlainText("Ho")},
    # folders
    "nested": {
        "a.ndjson:1": PlainText("a.ndjson"),
        "a/10.jsonl:1": PlainText("a/10.jsonl"),
        "a/2.jsonl:1": PlainText("a/2.jsonl"),
        "a/b/1.json:1": PlainText("a/b/1.json"),
        "b.jsonl:1": PlainText("b.jsonl"),
    },
    "with-runs": {
        "other/plan.parquet:1": PlainText("other/plan.parquet"),
        "run.jsonl:1": PlainText("run.jsonl"),
    },
    "saved": {
        "data-00000-of-00002.arrow:1": Row(HI, "0"),
        "data-00000-of-00002.arrow:2": Row(HO, "1"),
        "data-00001-of-00002.arrow:1": Row(HM, "2"),
    },
    "saved-dict/test": {"data-00000-of-00001.arrow:1": Row(HO, "1")},
    "saved-one-split": {"train/data-00000-of-00001.arrow:1": Row(HM, "2")},
}


@dataclass(frozen=True)
class Refusal:
    """How a dataset is refused as a whole."""

    kind: str
    #: Words that the sentence must have.
    says: str
    num_rows_before: int = 0


REFUSED: dict[str, Refusal] = {
    "absent.jsonl": Refusal("dataset-missing", "absent.jsonl: No such file"),
    "no-data": Refusal("dataset-missing", "no data file below"),
    "utf-16.jsonl": Refusal("dataset-utf16", "utf-16.jsonl is UTF-16; save it as UTF-8"),
    "utf-16-no-mark.jsonl": Refusal("dataset-utf16", "save it as UTF-8"),
    "utf-16.json.gz": Refusal("dataset-utf16", "save it as UTF-8"),
    "messages.parquet.gz": Refusal("dataset-format", "decompress it first"),
    "unknown-columns.parquet": Refusal(
        "columns-unknown", "has the columns 'question', 'answer' and"
    ),
    "empty.parquet": Refusal("dataset-damaged", "empty.parquet cannot be read: the file is empty"),
    "cut.jsonl.gz": Refusal("dataset-damaged", "cut.jsonl.gz cannot be read"),
    "cut-member.jsonl.gz": Refusal("dataset-damaged", "cannot be read"),
    "wrong-checksum.jsonl.gz": Refusal("dataset-damaged", "wrong-checksum.jsonl.gz cannot be read"),
    "garbage-behind.jsonl.gz": Refusal("dataset-damaged", "cannot be read"),
    "cut.jsonl.zst": Refusal("dataset-damaged", "cut.jsonl.zst cannot be read"),
    "cut.parquet": Refusal("dataset-damaged", "cut.parquet cannot be read"),
    "flipped-bit.parquet": Refusal("dataset-damaged", "cannot be read beyond row 3", 3),
    "cut.arrow": Refusal("dataset-damaged", "cannot be read beyond row 1", 1),
    "cut-at-batch.arrow": Refusal(
        "dataset-damaged", "cannot be read beyond row 2: the stream breaks off", 2
    ),
    "cut-file.arrow": Refusal("dataset-damaged", "cut-file.arrow cannot be read"),
    "wrong-offset.arrow": Refusal("dataset-damaged", "wrong-offset.arrow cannot be read"),
    "not-utf8.arrow": Refusal("dataset-damaged", "not-utf8.arrow cannot be read"),
    "cut-array.json": Refusal("dataset-damaged", "cut-array.json cannot be read beyond row 1", 1),
    "array-no-comma.json": Refusal("dataset-damaged", "beyond row 1: a comma or", 1),
    "array-and-more.json": Refusal("dataset-damaged", "something follows the array's end", 1),
    "array-of-turns-and-more.json": Refusal("dataset-damaged", "something follows the array's end"),
    "with-runs/run1": Refusal("dataset-missing", "folders of runs are passed over"),
    "array-not-utf8.json": Refusal("dataset-damaged", "array-not-utf8.json cannot be read"),
    "cut-pretty.json": Refusal("dataset-damaged", "cut-pretty.json cannot be read beyond row 1", 1),
    "saved-dict": Refusal("dataset-has-splits", "holds the splits train, test; give one of them"),
    "saved-broken-state": Refusal("dataset-damaged", "state.json does not list '_data_files'"),
    "saved-missing-file": Refusal("dataset-missing", "data-00000-of-00001.arrow: No such file"),
}


def outcome(raw: bytes | dict[str, Any] | RejectError) -> Row | str:
    try:
        return parse_row(raw)
    except RejectError as error:
        return error.kind


@pytest.mark.parametrize("source", READ)
def test_each_row_of_a_dataset_is_what_the_table_says(source: str) -> None:
    """Every row comes out under its file and line, with its content or its reason."""
    single_file = source.rpartition("/")[2]
    expected = {
        place if ":" in place else f"{single_file}:{place}": (
            Row(row, None) if isinstance(row, Content) else row
        )
        for place, row in READ[source].items()
    }
    dataset = Dataset.open(INPUTS / source)
    read = [(f"{row.file}:{row.line}", outcome(row.raw)) for row in dataset.rows()]
    assert read == list(expected.items())
    assert dataset.num_bytes_read == dataset.num_bytes


@pytest.mark.parametrize("source", REFUSED)
def test_half_a_dataset_never_passes_for_a_whole_one(source: str) -> None:
    """A dataset that cannot be read to its end is refused by name, after its good rows."""
    refusal = REFUSED[source]
    rows: list[RawRow] = []
    with pytest.raises(StatetapError) as caught:
        rows.extend(Dataset.open(INPUTS / source).rows())
    assert (caught.value.kind, len(rows)) == (refusal.kind, refusal.num_rows_before)
    assert refusal.says in caught.value.message
    assert source.partition("/")[0] in caught.value.message
    assert "\n" not in caught.value.message


def test_every_file_of_the_folder_stands_in_the_table() -> None:
    """No file lies about that nothing is expected of."""
    there = {path.name for path in INPUTS.iterdir()} - {"README.md"}
    assert there == {source.partition("/")[0] for source in [*READ, *REFUSED]} - {"absent.jsonl"}


@pytest.mark.parametrize("codec", [None, "gzip", "zstd"])
def test_a_line_beyond_64_mib_is_one_bad_row(tmp_path: Path, codec: str | None) -> None:
    """A huge line is left out by its reason, and the rows around it are read."""
    line = b'{"prompt": "Hi", "response": "Hello"}\n'
    content = line + b'{"text": "' + b"x" * (70 << 20) + b'"}\n' + line
    if codec == "gzip":
        content = gzip.compress(content, 1)
    elif codec == "zstd":
        content = pa.compress(content, codec="zstd", asbytes=True)
    (tmp_path / "huge.jsonl").write_bytes(content)
    rows = list(Dataset.open(tmp_path / "huge.jsonl").rows())
    assert [row.line for row in rows] == [1, 2, 3]
    good = Row(HI, None)
    assert [outcome(row.raw) for row in rows] == [good, "row-too-large", good]


def test_an_element_beyond_64_mib_ends_an_array(tmp_path: Path) -> None:
    """Where rows are not lines, none can be skipped; the array is refused."""
    (tmp_path / "huge.json").write_bytes(b'[{"text": "Hi"},{"text": "' + b"x" * (70 << 20) + b'"}]')
    rows = Dataset.open(tmp_path / "huge.json").rows()
    assert outcome(next(rows).raw) == Row(PlainText("Hi"), None)
    with pytest.raises(StatetapError, match="beyond row 1: the row is longer than 64 MiB"):
        next(rows)
