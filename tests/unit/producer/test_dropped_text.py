"""What templates leave out, on templates written as functions."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from statetap_contract import RejectError
from statetap_producer.prompts.chat_template import Message
from statetap_producer.prompts.dropped_text import refuse_dropped_text, refuse_dropped_tools
from statetap_producer.prompts.loss_mask import answer_spans
from statetap_producer.prompts.turn_shape import learn_turn_shape

from .chat_families import WEATHER, answer, call, system, tool, user

Write = Callable[[Message], str]


def content(message: Message) -> str:
    return message["content"] or ""


def with_calls(message: Message) -> str:
    names = [called["function"]["name"] for called in message.get("tool_calls", [])]
    return "".join([content(message), *(f"<call>{name}" for name in names)])


def refusal(check: Callable[[], None]) -> str:
    """The message of a check that refuses, "" of one that does not."""
    try:
        check()
    except RejectError as error:
        return error.message if error.kind == "template-drops-text" else error.kind
    return ""


def dropped(messages: Sequence[Message], write: Write, *, by_turn: bool = True) -> str:
    """What is said to be left out, "" where nothing is."""

    def render(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        turns = ((m["role"], write(m)) for m in messages)
        text = "".join(f"<{role}>{said}<e>\n" for role, said in turns if said is not NOTHING)
        return text + ("<assistant>" if is_open else "")

    text = render(messages, False)
    shape = learn_turn_shape(render, ("<e>",))
    spans = answer_spans(text, messages, render, shape, ("<e>",), stop=len(text))
    return refusal(lambda: refuse_dropped_text(text, messages, render, spans if by_turn else None))


#: A turn that is not written at all.
NOTHING = "nothing"

#: As JSON has them.
ESCAPES = str.maketrans({"\n": "\\n", "\t": "\\t", '"': '\\"'})

CALLING = answer("I call weather.", tool_calls=[call("weather")])


@pytest.mark.parametrize("by_turn", [True, False])
@pytest.mark.parametrize(
    ("messages", "write"),
    [
        ([user(" Q\n"), answer("  A ")], lambda m: content(m).strip()),
        ([user("Q"), answer("<think>B</think>A")], lambda m: content(m).split("</think>")[-1]),
        ([user("Q"), answer("<think>B</think>")], lambda m: content(m).split("</think>")[-1]),
        ([user('"Q"\n\té'), answer("A")], lambda m: content(m).translate(ESCAPES)),
        ([user("Q"), answer("A")], lambda m: content(m).replace("Q", "another")),
        ([user("Q"), CALLING, tool("T"), answer("A")], with_calls),
        (
            [user("Q"), {**CALLING, "content": None, "thinking": "weather?"}],
            lambda m: m.get("thinking", "") + with_calls(m),
        ),
        ([user(""), answer("")], content),
    ],
)
def test_what_is_written_in_some_way_is_found(
    messages: list[dict[str, Any]], write: Write, *, by_turn: bool
) -> None:
    """White space, JSON, other words and a thought that is not shown again are no loss."""
    assert dropped(messages, write, by_turn=by_turn) == ""


@pytest.mark.parametrize("by_turn", [True, False])
@pytest.mark.parametrize(
    ("messages", "write", "what"),
    [
        ([user("Q"), CALLING], content, "call of 'weather' in turn 2"),
        (
            [user("weather?"), answer("", tool_calls=[call("weather")], thinking="weather")],
            lambda m: m.get("thinking", "") + content(m),
            "call of 'weather' in turn 2",
        ),
        (
            [user("Q"), answer("", tool_calls=[call("weather"), call("weather")])],
            lambda m: with_calls({**m, "tool_calls": m.get("tool_calls", [])[:1]}),
            "call of 'weather' in turn 2",
        ),
        (
            [user("22?"), CALLING, tool("22"), answer("It is warm.")],
            lambda m: NOTHING if m["role"] == "tool" else with_calls(m),
            "turn 3, of role 'tool'",
        ),
        (
            [system("Q"), user("Q"), answer("A")],
            lambda m: NOTHING if m["role"] == "system" else content(m),
            "turn 1, of role 'system'",
        ),
        (
            [user("A"), answer("A"), user("Q"), answer("A")],
            lambda m: "" if "A" in content(m) and m["role"] == "assistant" else content(m),
            "turn 2, of role 'assistant'",
        ),
    ],
)
def test_what_is_not_written_is_named(
    messages: list[dict[str, Any]], write: Write, what: str, *, by_turn: bool
) -> None:
    """That the same words stand elsewhere hides nothing."""
    message = dropped(messages, write, by_turn=by_turn)
    assert what in message


def test_a_template_that_looks_into_contents_is_not_believed() -> None:
    """Where no mark can be put, a content that is not there is a lost one."""

    def looking(message: Message) -> str:
        if content(message).startswith("Qs") and content(message) != "Qs":
            raise RejectError("template-refused", "no such text")
        return content(message).replace("Q", "another")

    assert "turn 1" in dropped([user("Qs"), answer("A")], looking)


@pytest.mark.parametrize(
    ("text", "without", "is_lost"),
    [
        ('{"name": "weather", "parameters": {}}', "", False),
        ("weather()", "", False),
        ("weather()", "weather()", True),
    ],
)
def test_tools_change_the_text(text: str, without: str, *, is_lost: bool) -> None:
    """Tools as JSON are there; otherwise the text without them has to be another."""
    message = refusal(lambda: refuse_dropped_tools(text, WEATHER, lambda: without))
    assert ("leaves out the tools" in message, bool(message)) == (is_lost, is_lost)
