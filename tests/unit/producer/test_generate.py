"""Conversations are answered, each once, whatever the server does."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import StatetapError
from statetap_producer.generating import chat_client
from statetap_producer.generating.chat_client import Sampling
from statetap_producer.generating.generate import (
    GenerateOutcome,
    GenerateProgress,
    GenerateRequest,
    generate,
)

from .chat_stand_in import ChatStandIn
from .conftest import Invoke

Row = dict[str, Any]


def question(*texts: str, **fields: object) -> Row:
    """A row whose turns are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"messages": messages} | fields


class Desk:
    """A dataset, a server, and the file that answers go to."""

    def __init__(self, folder: Path, server: ChatStandIn) -> None:
        self.server = server
        self.dataset = folder / "chats.jsonl"
        self.out = folder / "answered.jsonl"
        self.partial = folder / "answered.jsonl.partial"
        self.progress = GenerateProgress()

    def ask(self, *rows: object) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.dataset.write_text("\n".join(lines) + "\n")

    def generate(
        self,
        *,
        replace: bool = False,
        strict: bool = False,
        model: str | None = None,
        temperature: float | None = None,
        in_flight: int = 4,
    ) -> GenerateOutcome:
        def note(now: GenerateProgress) -> None:
            self.progress = now

        sampling = Sampling(100, temperature)
        request = GenerateRequest(
            self.dataset, self.out, self.server.url, model, sampling, replace, in_flight, strict
        )
        return generate(request, note)

    def rows(self) -> list[Row]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def answers(self) -> list[str]:
        """The last turn of each row."""
        return [row["messages"][-1]["content"] for row in self.rows()]

    def names(self) -> set[str]:
        return {path.name for path in self.out.parent.iterdir()}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    monkeypatch.setattr(chat_client, "_FIRST_WAIT_S", 0.001)
    with ChatStandIn() as server:
        yield Desk(tmp_path, server)


def refused(run: Callable[[], object], kind: str, exit_code: int) -> str:
    """The sentence of the error."""
    with pytest.raises(StatetapError) as caught:
        run()
    assert (caught.value.kind, caught.value.exit_code) == (kind, exit_code)
    return caught.value.message


def test_missing_answers_are_filled_in(desk: Desk) -> None:
    """In the order of the dataset, with id and source; what is answered is copied and not asked."""
    desk.ask(
        question("one", id="first"),
        question("two", "done"),
        question("three", "before", "four", id=7),
        {"prompt": "five"},
    )
    outcome = desk.generate(temperature=0.5)
    assert desk.rows() == [
        {
            "id": "first",
            "messages": [
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "re: one"},
            ],
            "source": "chats.jsonl:1",
        },
        question("two", "done", source="chats.jsonl:2"),
        question("three", "before", "four", "re: four", id="7", source="chats.jsonl:3"),
        question("five", "re: five", source="chats.jsonl:4"),
    ]
    assert sorted(desk.server.last_turns()) == ["five", "four", "one"]
    assert all(
        (body["model"], body["max_tokens"], body["temperature"]) == ("target", 100, 0.5)
        for body in desk.server.asked
    )
    assert (outcome.counts.num_rows, outcome.counts.num_left_out) == (4, 0)
    assert (outcome.progress.num_answers, outcome.progress.num_tokens) == (3, 9)
    assert desk.names() == {"chats.jsonl", "answered.jsonl", "answered.jsonl.made"}


def test_the_order_is_that_of_the_dataset_whoever_is_first(desk: Desk) -> None:
    """Answers come back in any order."""
    desk.ask(*(question(f"q{number}") for number in range(50)))
    desk.server.behaviour = lambda body, number: (
        (503, {}) if number == 1 and body["messages"][0]["content"][-1] in "02468" else None
    )
    desk.generate(in_flight=16)
    assert desk.answers() == [f"re: q{number}" for number in range(50)]


def test_replacing_asks_for_every_turn_after_the_replaced_ones(desk: Desk) -> None:
    """Each answer is given what the model itself said before."""
    desk.ask(question("a", "old", "b", "older", "c"))
    desk.generate(replace=True)
    (row,) = desk.rows()
    texts = [message["content"] for message in row["messages"]]
    assert texts == ["a", "re: a", "b", "re: b", "c", "re: c"]
    assert [len(body["messages"]) for body in desk.server.asked] == [1, 3, 5]
    assert desk.server.asked[2]["messages"][:4] == row["messages"][:4]


def test_replacing_keeps_greetings_and_what_tools_have_answered(desk: Desk) -> None:
    """A greeting answers nobody, and a tool's words belong to the calls that were made."""
    call = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": {"x": 1}}}
    messages = [
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "old"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    desk.ask({"messages": messages, "tools": tools})
    desk.generate(replace=True)
    (row,) = desk.rows()
    assert row["messages"][:4] == messages[:4]
    assert row["messages"][4] == {"role": "assistant", "content": "re: 42"}
    assert row["tools"] == tools
    (body,) = desk.server.asked
    assert body["tools"] == tools
    sent = body["messages"][2]["tool_calls"][0]["function"]
    assert sent == {"name": "f", "arguments": '{"x": 1}'}


def test_reasoning_and_tool_calls_of_an_answer_are_kept(desk: Desk) -> None:
    """Arguments as an object, as ``plan`` reads them; what else the server tells is not."""
    desk.server.message_of = lambda _body: {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I must look.",
        "tool_calls": [
            {
                "id": "c9",
                "index": 0,
                "type": "function",
                "function": {"name": "f", "arguments": '{"x": [1, 2]}'},
            }
        ],
        "refusal": None,
    }
    desk.server.finish_reason = "tool_calls"
    desk.ask(question("go"))
    desk.generate()
    assert desk.rows()[0]["messages"][1] == {
        "role": "assistant",
        "content": None,
        "reasoning_content": "I must look.",
        "tool_calls": [
            {
                "type": "function",
                "id": "c9",
                "function": {"name": "f", "arguments": {"x": [1, 2]}},
            }
        ],
    }


def test_an_answer_of_nothing_but_reasoning_has_empty_text(desk: Desk) -> None:
    """As when it was cut before it came to the point."""
    desk.server.message_of = lambda _body: {"content": None, "reasoning_content": "Hm."}
    desk.ask(question("go"))
    desk.generate()
    answer = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    assert desk.rows()[0]["messages"][1] == answer


def test_cut_answers_are_kept_and_counted(desk: Desk) -> None:
    """Also those of an earlier call."""
    desk.server.finish_reason = "length"
    desk.ask(question("one"), question("two"), question("three", "done"), "broken")
    refused(lambda: desk.generate(strict=True, in_flight=1), "row-refused", 1)
    desk.ask(question("one"), question("two"), question("three", "done"))
    outcome = desk.generate()
    assert (outcome.counts.num_cut, outcome.progress.num_rows_before) == (2, 3)
    assert desk.answers() == ["re: one", "re: two", "done"]


@pytest.mark.parametrize("status", [0, 408, 429, 500, 502, 503, 504])
def test_what_time_mends_is_asked_again(desk: Desk, status: int) -> None:
    """Busy, starting, broken, or a connection that was dropped (0)."""
    desk.ask(question("one"), question("two"))
    desk.server.behaviour = lambda _body, number: (status, {}) if number < 4 else None
    desk.generate()
    assert desk.answers() == ["re: one", "re: two"]
    assert len(desk.server.asked) == 8


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{"message": "x"}], "usage": {"completion_tokens": 1}},
        {
            "choices": [{"message": {"content": "half"}, "finish_reason": "abort"}],
            "usage": {"completion_tokens": 1},
        },
    ],
)
def test_what_is_no_whole_answer_is_asked_again(desk: Desk, body: Row) -> None:
    """Nothing of it gets into the file."""
    desk.ask(question("one"))
    desk.server.behaviour = lambda _body, number: (200, body) if number < 3 else None
    desk.generate()
    assert desk.answers() == ["re: one"]


def test_the_server_says_how_long_to_wait(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry-After goes before the own doubling."""
    waited: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            waited.append(seconds)
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    desk.ask(question("one"))
    desk.server.retry_after = "17"
    desk.server.behaviour = lambda _body, number: (429, {}) if number < 3 else None
    desk.generate()
    assert waited == [17.0, 17.0]


def test_rows_that_cannot_be_answered_are_left_out_and_named(desk: Desk) -> None:
    """By file, line and reason; the others are answered."""
    desk.ask(
        question("one"),
        "broken",
        question("too long"),
        {"text": "plain"},
        {"input_ids": [1, 2]},
        {"messages": [{"role": "system", "content": "only"}]},
        question("two"),
    )
    desk.server.behaviour = lambda body, _number: (
        (400, {"message": "The input is longer\nthan the context", "code": 400})
        if body["messages"][0]["content"] == "too long"
        else None
    )
    outcome = desk.generate()
    assert desk.answers() == ["re: one", "re: two"]
    named = {(fault.line, fault.kind) for fault in outcome.progress.faults}
    assert named == {
        (2, "row-not-json"),
        (3, "request-refused"),
        (4, "not-a-conversation"),
        (5, "not-a-conversation"),
        (6, "nothing-to-answer"),
    }
    assert outcome.counts.num_left_out == 5
    (refusal,) = (fault for fault in outcome.progress.faults if fault.line == 3)
    assert str(refusal).startswith("chats.jsonl:3: ")
    assert "The input is longer than the context" in str(refusal)
    assert desk.server.last_turns().count("too long") == 1


def test_an_answer_that_is_no_turn_is_left_out(desk: Desk) -> None:
    """``plan`` would not read it."""
    desk.server.message_of = lambda body: (
        {"content": "\ud800"} if body["messages"][0]["content"] == "odd" else {"content": "fine"}
    )
    desk.ask(question("one"), question("odd"))
    outcome = desk.generate()
    assert desk.answers() == ["fine"]
    assert dict(outcome.progress.num_left_out) == {"content-not-text": 1}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e999"])
@pytest.mark.parametrize("texts", [("odd",), ("odd", "done")])
def test_a_row_with_a_number_that_json_does_not_have_is_left_out(
    desk: Desk, number: str, texts: tuple[str, ...]
) -> None:
    """Python reads it, and no server and no other reader of the file would."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"maximum": "#"}}}]
    odd = json.dumps(question(*texts, tools=tools)).replace('"#"', number)
    desk.ask(question("one"), odd, question("two"))
    outcome = desk.generate()
    assert desk.answers() == ["re: one", "re: two"]
    assert [(fault.line, fault.kind) for fault in outcome.progress.faults] == [(2, "no-json-form")]
    assert outcome.counts.num_refused == 0


def test_an_answer_with_a_number_that_json_does_not_have_is_left_out(desk: Desk) -> None:
    """As a model may write it into the arguments of a call."""
    call = {"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"x": NaN}'}}
    desk.server.message_of = lambda body: (
        {"content": None, "tool_calls": [call]}
        if body["messages"][0]["content"] == "odd"
        else {"content": "fine"}
    )
    desk.ask(question("odd"), question("one"))
    outcome = desk.generate()
    assert desk.answers() == ["fine"]
    assert dict(outcome.progress.num_left_out) == {"no-json-form": 1}


def test_answers_that_cannot_be_decompressed_are_the_servers_fault(desk: Desk) -> None:
    """One sentence, after a bounded number of tries; when it is mended, all is answered."""
    desk.ask(question("one"))

    def compress(_body: Row, _number: int) -> None:
        desk.server.encoding = "gzip"

    desk.server.behaviour = compress
    assert "cannot be read" in refused(desk.generate, "server-fails", 3)
    assert len(desk.server.asked) == 8
    # The list of models is then no better.
    refused(desk.generate, "server-unreachable", 3)
    desk.server.behaviour, desk.server.encoding = (lambda _body, _number: None), None
    desk.generate()
    assert desk.answers() == ["re: one"]


def test_where_nothing_is_answered_there_is_no_file(desk: Desk) -> None:
    """It ends with the reason of the first row, and the same call asks again."""
    desk.ask(question("one"), question("two"), question("three"))
    desk.server.behaviour = lambda _body, _number: (400, {"message": "max_tokens is too large"})
    sentence = refused(desk.generate, "nothing-answered", 1)
    assert "3 left out" in sentence
    assert "max_tokens is too large" in sentence
    assert desk.names() == {"chats.jsonl", "answered.jsonl.partial"}
    desk.server.behaviour = lambda _body, _number: None
    desk.generate()
    assert desk.answers() == ["re: one", "re: two", "re: three"]


@pytest.mark.parametrize("status", [400, 500])
def test_what_the_server_did_not_answer_is_asked_again(desk: Desk, status: int) -> None:
    """By the same call, and nothing else is; until then the file holds the others."""
    desk.ask(question("one"), question("two"), question("three"), "broken")
    desk.server.behaviour = lambda body, _number: (
        (status, {"message": "no"}) if body["messages"][0]["content"] == "two" else None
    )
    first = desk.generate(in_flight=1)
    assert (first.counts.num_left_out, first.counts.num_refused) == (2, 1)
    assert desk.answers() == ["re: one", "re: three"]
    desk.server.behaviour = lambda _body, _number: None
    desk.server.asked.clear()
    second = desk.generate()
    assert desk.server.last_turns() == ["two"]
    assert (second.is_new, second.counts.num_left_out, second.counts.num_refused) == (True, 1, 0)
    assert desk.answers() == ["re: one", "re: two", "re: three"]
    assert not desk.generate().is_new
    assert desk.names() == {"chats.jsonl", "answered.jsonl", "answered.jsonl.made"}


def test_a_file_whose_partial_file_was_removed_is_finished(desk: Desk) -> None:
    """Nobody asks for everything once more because of one row."""
    desk.ask(question("one"), question("two"))
    desk.server.behaviour = lambda body, _number: (
        (400, {}) if body["messages"][0]["content"] == "two" else None
    )
    desk.generate()
    desk.partial.unlink()
    assert not desk.generate().is_new


def test_strict_stops_at_the_first_such_row(desk: Desk) -> None:
    """What was answered before is kept."""
    desk.ask(question("one"), "broken", question("two"))
    sentence = refused(lambda: desk.generate(strict=True, in_flight=1), "row-refused", 1)
    assert sentence.startswith("chats.jsonl:2: the row is not JSON")
    assert not desk.out.exists()
    assert desk.partial.exists()


def test_one_row_that_breaks_the_server_is_left_out(desk: Desk) -> None:
    """Others are answered, so the row is to blame."""
    desk.ask(question("one"), question("poison"), question("two"))
    desk.server.behaviour = lambda body, _number: (
        (500, {"error": {"message": "boom"}})
        if body["messages"][0]["content"] == "poison"
        else None
    )
    outcome = desk.generate()
    assert desk.answers() == ["re: one", "re: two"]
    assert dict(outcome.progress.num_left_out) == {"server-error": 1}
    assert "boom" in str(outcome.progress.faults[0])
    assert desk.server.last_turns().count("poison") == 8


def test_a_server_that_only_fails_ends_it(desk: Desk) -> None:
    """In one sentence, after a bounded number of tries."""
    desk.ask(*(question(f"q{number}") for number in range(20)))
    desk.server.behaviour = lambda _body, _number: (500, {"error": "boom"})
    sentence = refused(desk.generate, "server-fails", 3)
    assert "boom" in sentence
    assert len(desk.server.asked) <= 4 * 8


def test_a_server_that_goes_away_ends_it_and_nothing_is_lost(desk: Desk) -> None:
    """The next call asks for the rest only."""
    desk.ask(*(question(f"q{number}") for number in range(10)))
    desk.server.behaviour = lambda body, _number: (
        (0, {}) if int(body["messages"][0]["content"][1:]) >= 5 else None
    )
    sentence = refused(lambda: desk.generate(in_flight=1), "server-unreachable", 3)
    assert desk.server.url in sentence
    assert not desk.out.exists()
    desk.server.behaviour = lambda _body, _number: None
    desk.server.asked.clear()
    outcome = desk.generate()
    assert sorted(desk.server.last_turns()) == [f"q{number}" for number in range(5, 10)]
    assert outcome.progress.num_rows_before == 5
    assert desk.answers() == [f"re: q{number}" for number in range(10)]


@pytest.mark.parametrize(
    ("status", "kind", "part"),
    [
        (401, "server-key", "STATETAP_API_KEY"),
        (403, "server-key", "STATETAP_API_KEY"),
        (404, "server-refuses", "404"),
    ],
)
def test_what_every_request_would_get_ends_it_at_once(
    desk: Desk, status: int, kind: str, part: str
) -> None:
    """A key is missing, or it is another kind of server."""
    desk.ask(question("one"))
    desk.server.behaviour = lambda _body, _number: (status, {"error": "no"})
    assert part in refused(desk.generate, kind, 3)
    assert len(desk.server.asked) == 1


def test_a_changed_row_is_asked_again(desk: Desk) -> None:
    """What lies in the partial file for a row counts for that very row."""
    desk.ask(question("one"), question("two"), "broken")
    refused(lambda: desk.generate(strict=True, in_flight=1), "row-refused", 1)
    desk.server.asked.clear()
    desk.ask(question("one"), question("other"), question("three"))
    desk.generate()
    assert sorted(desk.server.last_turns()) == ["other", "three"]
    assert desk.answers() == ["re: one", "re: other", "re: three"]


def test_a_cut_line_and_garbage_are_asked_again(desk: Desk) -> None:
    """As kill -9 and a power loss leave them."""
    desk.ask(question("one"), question("two"), question("three"), "broken")
    refused(lambda: desk.generate(strict=True, in_flight=1), "row-refused", 1)
    header, first, second, third = desk.partial.read_bytes().splitlines(keepends=True)
    desk.partial.write_bytes(header + first + bytes(len(second) - 1) + b"\n" + third[:-5])
    desk.server.asked.clear()
    desk.ask(question("one"), question("two"), question("three"))
    desk.generate()
    assert sorted(desk.server.last_turns()) == ["three", "two"]
    assert desk.answers() == ["re: one", "re: two", "re: three"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"temperature": 1.0}, "temperature"),
        ({"replace": True}, "is_replacing"),
        ({"model": "another"}, "model"),
    ],
)
def test_a_partial_file_of_other_options_is_refused(
    desk: Desk, change: dict[str, Any], name: str
) -> None:
    """Answers of two kinds do not go into one file; it is left as it is."""
    desk.ask(question("one"), "broken")
    desk.server.models = ["target", "another"]
    refused(lambda: desk.generate(strict=True, in_flight=1, model="target"), "row-refused", 1)
    before = desk.partial.read_bytes()
    sentence = refused(lambda: desk.generate(**{"model": "target"} | change), "partial-differs", 2)
    assert name in sentence
    assert desk.partial.read_bytes() == before


@pytest.mark.parametrize("content", [b"no header\n", b"[]\n", b'{"version": 99}\n'])
def test_a_foreign_partial_file_is_not_touched(desk: Desk, content: bytes) -> None:
    """It may be somebody's."""
    desk.ask(question("one"))
    desk.partial.write_bytes(content)
    refused(desk.generate, "partial-unreadable", 2)
    assert desk.partial.read_bytes() == content


def test_a_second_process_is_refused(desk: Desk) -> None:
    """Two at one file would ask for everything twice."""
    desk.ask(question("one"))

    def ask_again(_body: Row, _number: int) -> None:
        refused(desk.generate, "partial-taken", 2)

    desk.server.behaviour = ask_again
    desk.generate()
    assert desk.answers() == ["re: one"]


def test_a_finished_file_is_finished(desk: Desk) -> None:
    """The same call again asks nothing; a file that was made from something else is left alone."""
    desk.ask(question("one"), "broken")
    desk.generate()
    before = desk.out.read_bytes()
    desk.server.asked.clear()
    outcome = desk.generate()
    assert not outcome.is_new
    assert (outcome.counts.num_rows, outcome.counts.num_left_out) == (1, 1)
    assert desk.server.asked == []
    refused(lambda: desk.generate(temperature=1.0), "out-exists", 2)
    desk.ask(question("two"))
    refused(desk.generate, "out-exists", 2)
    desk.out.with_name("answered.jsonl.made").unlink()
    refused(desk.generate, "out-exists", 2)
    assert desk.out.read_bytes() == before


@pytest.mark.parametrize(
    ("models", "wanted", "kind"),
    [
        ([], None, "model-not-given"),
        (["a", "b"], None, "model-not-given"),
        (["a"], "b", "model-unknown"),
    ],
)
def test_the_model_must_be_one_of_the_server(
    desk: Desk, models: list[str], wanted: str | None, kind: str
) -> None:
    """And where there are several, one must be chosen."""
    desk.ask(question("one"))
    desk.server.models = models
    refused(lambda: desk.generate(model=wanted), kind, 2)
    assert desk.names() == {"chats.jsonl"}


@pytest.mark.parametrize(
    ("url", "kind", "exit_code"),
    [
        ("http://127.0.0.1:1", "server-unreachable", 3),
        ("127.0.0.1:30000", "server-url", 2),
        ("ftp://127.0.0.1", "server-url", 2),
        ("", "server-url", 2),
    ],
)
def test_a_server_that_is_none_is_named(desk: Desk, url: str, kind: str, exit_code: int) -> None:
    """Before anything is made."""
    desk.ask(question("one"))
    desk.server.url, real = url, desk.server.url
    refused(desk.generate, kind, exit_code)
    desk.server.url = real
    assert desk.names() == {"chats.jsonl"}


def test_mistakes_are_found_before_anything_is_made(desk: Desk, tmp_path: Path) -> None:
    """No dataset, no folder for the file, no number."""
    refused(desk.generate, "dataset-missing", 3)
    desk.ask(question("one"))
    refused(lambda: desk.generate(temperature=float("nan")), "temperature", 2)
    desk.out = tmp_path / "nowhere" / "answered.jsonl"
    refused(desk.generate, "folder-missing", 3)
    assert {path.name for path in tmp_path.iterdir()} == {"chats.jsonl"}


def test_an_empty_dataset_gives_an_empty_file(desk: Desk) -> None:
    """Nothing is asked, and nothing is wrong."""
    desk.dataset.write_text("")
    assert desk.generate().counts.num_rows == 0
    assert desk.out.read_bytes() == b""


def test_the_command_tells_what_was_done(desk: Desk, statetap: Invoke) -> None:
    """Rows, cut answers and what was left out, by name; again says so; no bar in a log."""
    desk.ask(question("one"), "broken", question("two", "[red]done"))
    desk.server.finish_reason = "length"
    arguments = ("generate", desk.dataset, "--out", desk.out, "--server", desk.server.url)
    result = statetap(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        f"2 rows in {desk.out}, answered by target",
        "1 row with an answer that was cut at --max-new-tokens",
        "1 row left out: 1 row-not-json",
        "chats.jsonl:2: the row is not JSON",
    ):
        assert words in result.stdout
    again = statetap(*arguments)
    assert again.exit_code == 0
    assert again.stdout == f"{desk.out} holds these very answers already, 2 rows.\n"
    other = statetap(*arguments, "--temperature", "0")
    assert other.exit_code == 2
    assert other.stderr.startswith(f"statetap: {desk.out} is there already")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_in_the_middle_it_goes_on(desk: Desk, number: signal.Signals) -> None:
    """After Ctrl-C, SIGTERM and kill -9 no row is asked twice for nothing, and none is missing."""
    desk.ask(*(question(f"q{number}") for number in range(200)))
    command = [
        str(Path(sys.executable).parent / "statetap"),
        *("generate", str(desk.dataset), "--out", str(desk.out), "--server", desk.server.url),
        "--in-flight=4",
    ]
    victims: list[subprocess.Popen[str]] = []

    def stop_it(_body: Row, _number: int) -> None:
        if len(desk.server.asked) == 60:
            os.kill(victims[0].pid, number)

    desk.server.behaviour = stop_it
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as victim:
        victims.append(victim)
        _, stderr = victim.communicate(timeout=60)
    expected = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert victim.returncode == expected
    if number != signal.SIGKILL:
        assert stderr.startswith("statetap: stopped with ")
        assert stderr.endswith(" answered; the same command goes on\n")
    assert not desk.out.exists()
    done = len(desk.partial.read_bytes().splitlines()) - 1
    assert 40 <= done <= 64
    desk.server.asked.clear()
    desk.server.behaviour = lambda _body, _number: None
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert 200 - done <= len(desk.server.asked) <= 200 - done + 1
    assert desk.answers() == [f"re: q{number}" for number in range(200)]
    assert desk.names() == {"chats.jsonl", "answered.jsonl", "answered.jsonl.made"}
