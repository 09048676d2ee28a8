"""Loss masks of random conversations, for every template: what is in them, and what never is."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statetap_contract import RejectError
from statetap_producer.prompts.chat_tokenizer import ChatTokenizer, TokenisedPrompt
from statetap_producer.reading.conversation import Conversation

from . import conftest
from .chat_families import (
    FAMILIES,
    answer,
    call,
    chat_tokenizer,
    system,
    template_of,
    tokenizer_of,
    tool,
    user,
)

#: Kinds that say that a conversation is not the template's, or cannot be decided.
_REFUSALS = (
    "template-refused",
    "template-moves-text",
    "template-drops-text",
    "no-loss-tokens",
    "assistant-first",
)

#: Templates that take whatever comes in any order.
_TOLERANT = ("chatml", "qwen3", "llama31", "mistral", "kimi_k2")

#: Those that leave out what is said beside a call, and the one that needs a question last to write
#: a system message.
_MUTE_CALLS = ("llama31", "mistral")
_LATE_SYSTEM = ("mistral",)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    return {
        name: chat_tokenizer(tmp_path_factory.mktemp(name), family, template_of(name))
        for name, family in FAMILIES.items()
    }


def words(first: str) -> st.SearchStrategy[str]:
    """Text that says by its letters who wrote it, amid white space, emoji and reasoning."""
    pieces = [first, f"{first} ", f"\n\n{first}", "🎉", "é\u0301", " \n", "<think>", "</think>\n"]
    return st.lists(st.sampled_from(pieces), max_size=5).map("".join)


def turns(number: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """A question and its answer, some through a call."""
    question = st.builds(user, words(f"Q{number}"))
    plain = st.builds(answer, words(f"A{number}"))
    thinking = st.builds(
        lambda text, why: answer(text, reasoning_content=why, thinking=why),
        words(f"A{number}"),
        words(f"R{number}"),
    )
    asking = st.builds(
        lambda text, given: answer(text, tool_calls=[call("f", "f:0", x=given)]),
        st.none() | words(f"A{number}"),
        words(f"C{number}"),
    )
    reply = st.builds(lambda text: tool(text, tool_call_id="1"), words(f"T{number}"))
    return st.one_of(
        st.tuples(question, plain),
        st.tuples(question, thinking),
        st.tuples(question, asking, reply, plain),
        st.tuples(question, asking, reply, reply, asking, reply, thinking),
    ).map(list)


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    messages = [system(draw(words("S0")))] if draw(st.booleans()) else []
    for number in range(draw(st.integers(1, 3))):
        messages += draw(turns(number))
    if draw(st.booleans()):
        messages.append(user(draw(words("L0"))))
    return Conversation(tuple(messages), None)


def plan(tokenizer: ChatTokenizer, asked: Conversation) -> Any:
    [result] = tokenizer.prompts([asked])
    if isinstance(result, RejectError):
        assert result.kind in _REFUSALS, result
        return None
    return result.prompt


@pytest.mark.parametrize("name", FAMILIES)
@given(asked=conversations())
@settings(max_examples=40, deadline=None)
def test_the_loss_is_over_the_assistant_s_words_alone(
    tokenizers: dict[str, ChatTokenizer], name: str, asked: Conversation
) -> None:
    """No word of a question, a system message or a result is in the loss; no answer is outside."""
    prompt = plan(tokenizers[name], asked)
    if prompt is None:
        return
    decoder = tokenizer_of(FAMILIES[name])
    mask = prompt.loss_mask()
    inside = decoder.decode([t for t, flag in zip(prompt.token_ids, mask, strict=True) if flag])
    outside = decoder.decode(
        [t for t, flag in zip(prompt.token_ids, mask, strict=True) if not flag]
    )
    letters = "QTSL"
    assert not any(f"{letter}{number}" in inside for letter in letters for number in "012")
    assert not any(f"{letter}{number}" in outside for letter in "AC" for number in "012")


@pytest.mark.parametrize("name", _TOLERANT)
@given(asked=conversations())
# The same conversations each time: one in thousands cannot be decided.
@settings(max_examples=200, deadline=None, derandomize=True)
def test_few_conversations_are_refused(
    tokenizers: dict[str, ChatTokenizer], name: str, asked: Conversation
) -> None:
    """A template that takes every conversation leaves none of these undecided."""
    [result] = tokenizers[name].prompts([asked])
    lost = said_in_vain(name, asked)
    if isinstance(result, RejectError):
        assert (result.kind, bool(lost)) == ("template-drops-text", True), (result, asked)
    else:
        # An emoji that is lost may stand beside another one.
        assert not {"A", "S"}.intersection(lost), asked


def said_in_vain(name: str, asked: Conversation) -> str:
    """What the templates leave out, as a person reads them."""
    first, last = asked.messages[0], asked.messages[-1]
    lost = ""
    if name in _LATE_SYSTEM and first["role"] == "system" and last["role"] != "user":
        lost = first["content"].strip()
    if name in _MUTE_CALLS:
        called = [m["content"] or "" for m in asked.messages if "tool_calls" in m]
        lost += "".join(content.split("</think>")[-1].strip() for content in called)
    return lost


@pytest.fixture(scope="module")
def with_and_without_block(tmp_path_factory: pytest.TempPathFactory) -> list[ChatTokenizer]:
    return [
        chat_tokenizer(tmp_path_factory.mktemp("block"), FAMILIES["chatml"], template)
        for template in (conftest.CHATML, conftest.CHATML_WITH_BLOCK)
    ]


@given(asked=conversations())
@settings(max_examples=60, deadline=None)
def test_a_generation_block_and_what_is_found_without_it_agree(
    with_and_without_block: list[ChatTokenizer], asked: Conversation
) -> None:
    """The same text, marked by its author and by the search, has the same mask."""
    plain = tuple({"role": m["role"], "content": m["content"] or ""} for m in asked.messages)
    [[without], [with_block]] = [
        tokenizer.prompts([Conversation(plain, None)]) for tokenizer in with_and_without_block
    ]
    assert isinstance(without, TokenisedPrompt)
    assert without == with_block
