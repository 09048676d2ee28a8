"""Rendering through foreign templates: what they get, and what they cannot break."""

import pytest
from statetap_contract import RejectError
from statetap_producer.prompts.chat_template import ChatTemplate
from statetap_producer.prompts.template_messages import with_known_reasoning, with_text_arguments

from .chat_families import WEATHER, answer, call, user

ASKED = [user("Hi"), answer("Hello", reasoning_content="They greet.", tool_calls=[call("f", x=1)])]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(ASKED, WEATHER)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>Hi"),
        ("{{ messages[1].reasoning_content }}", "They greet."),
        ("{{ messages[1].tool_calls[0].function.arguments.x + 1 }}", "2"),
        ("{{ tools[0].function.name }}", "weather"),
        ("{{ (messages + tools) | length }}", "3"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ add_generation_prompt }} {{ documents is none }}", "False True"),
    ],
)
def test_a_template_gets_what_transformers_gives_it(source: str, text: str) -> None:
    """Messages with their extras, tools, special tokens, and a clock that stands still."""
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% if %}",
        "{{ messages[9].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for x in range(10 ** 9) %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'x' * 10 ** 18 }}",
        "{{ 'x'.encode('no such codec') }}",
        "{{ '\\ud83d' }}",
        "{% include 'other' %}",
        "{{ messages | tojson(indent=3, unknown=1) }}",
    ],
)
def test_whatever_a_template_raises_is_its_refusal(source: str) -> None:
    """A fault, an attack or an excess of a template costs one conversation."""
    with pytest.raises(RejectError) as caught:
        render(source)
    assert caught.value.kind == "template-refused"


def test_generation_blocks_are_found() -> None:
    """The characters inside a block, in the text as rendered."""
    source = (
        "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}"
    )
    template = ChatTemplate(source, {})
    assert template.has_generation_block
    assert template.render_with_blocks(ASKED, None) == ("<Hi><Hello>", [(1, 3), (5, 10)])


def test_arguments_become_text_and_nothing_else_changes() -> None:
    """Templates that put arguments together with text get JSON."""
    messages = [user("Hi"), answer(None, tool_calls=[call("f", city="Zürich")])]
    [asked, called] = with_text_arguments(messages) or []
    assert asked == user("Hi")
    assert called["tool_calls"][0] == {
        "id": "call-1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"city": "Zürich"}'},
    }
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Zürich"}
    assert with_text_arguments([user("Hi"), answer("Hello")]) is None


NAMES = ("reasoning_content", "reasoning", "thinking")


@pytest.mark.parametrize("name", NAMES)
def test_reasoning_has_every_name_that_a_template_may_read(name: str) -> None:
    """One thing under one name is given under all three; a turn without any is left as it is."""
    asked = [user("Hi"), answer("Hello", **{name: "They greet.", "reasoning": "They greet."})]
    assert with_known_reasoning(asked) == [
        user("Hi"),
        answer("Hello", **dict.fromkeys(NAMES, "They greet.")),
    ]
    assert with_known_reasoning([answer("Hello", **{name: ""}, tool_calls=[])]) == [
        answer("Hello", **{name: ""}, tool_calls=[])
    ]


def test_reasoning_of_two_minds_is_refused() -> None:
    """Which of two thoughts is the turn's cannot be known; an empty one is none."""
    with pytest.raises(RejectError, match="turn 2 has") as caught:
        with_known_reasoning([user("Hi"), answer("Hello", reasoning="A", thinking="B")])
    assert caught.value.kind == "reasoning-ambiguous"
    [known] = with_known_reasoning([answer("Hello", reasoning="", thinking="B")])
    assert known["reasoning"] == "B"


def test_the_digest_is_the_templates() -> None:
    """Another template, another digest."""
    assert ChatTemplate("a", {}).digest == ChatTemplate("a", {"bos_token": "<s>"}).digest
    assert ChatTemplate("a", {}).digest != ChatTemplate("b", {}).digest
