"""How a chat template begins and ends an assistant's turn, learned from a made-up conversation."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import Message, Span
from statetap_producer.reading.turns import ASSISTANT

#: Renders messages, with the prompt for the next answer or without.
Render = Callable[[Sequence[Message], bool], str]

#: Renders messages, and says where the generation blocks are.
RenderWithBlocks = Callable[[Sequence[Message]], tuple[str, list[Span]]]

# Contents that no template holds and none looks into.
_ASK: Final = {"role": "user", "content": "\ue000ask\ue000"}
_ANSWER: Final = {"role": ASSISTANT, "content": "\ue001answer\ue001"}
_ASK_AGAIN: Final = {"role": "user", "content": "\ue002ask\ue002"}
_ANSWER_AGAIN: Final = {"role": ASSISTANT, "content": "\ue003answer\ue003"}
_SYSTEM: Final = {"role": "system", "content": "\ue004system\ue004"}


@dataclass(frozen=True, slots=True)
class TurnShape:
    """What a template writes round an answer."""

    #: End of what the template writes for the model to go on from; "" where it writes nothing.
    generation_prompt: str
    #: The part of it that an answer need not begin with: it opens a thought.
    opened_thought: str
    #: Whether there is no generation prompt because answers have no header: they follow what ends
    #: the question.
    is_headerless: bool
    #: From an answer's content to the end of its last end-of-turn token, in the last turn and in
    #: earlier ones; none where turns end without a special token.
    endings: tuple[str, ...]
    #: Everything after the content of the last turn.
    closing: str
    #: The part of it that the model has to produce.
    closing_answer: str


def learn_turn_shape(render: Render, special_tokens: Collection[str]) -> TurnShape:
    """Looks at a template through a question and its answer, once and twice.

    Args:
        render: the chat template.
        special_tokens: texts of the tokenizer's special tokens.

    Raises:
        RejectError: kind ``template-refused``: the template takes no plain conversation, or
            leaves out its answer.
    """
    try:
        start, asked = [], render([_ASK], False)
    except RejectError:  # some want a system message
        start, asked = [_SYSTEM], render([_SYSTEM, _ASK], False)
    opened = render([*start, _ASK], True)
    answered = render([*start, _ASK, _ANSWER], False)
    beginning, found, closing = answered.partition(_ANSWER["content"])
    if not found:
        raise RejectError("template-refused", "the chat template leaves out the assistant's answer")
    try:
        earlier = render([*start, _ASK, _ANSWER, _ASK_AGAIN, _ANSWER_AGAIN], False)
        reopened = render([*start, _ASK, _ANSWER], True)
    except RejectError:  # a template for one turn
        earlier = reopened = ""
    earlier_beginning, _, before_question = earlier.partition(_ANSWER["content"])
    before_answer = reopened.partition(_ANSWER["content"])[2]
    generation_prompt = opened[_shared(asked, opened) :]
    # What ends the text and what precedes a question begin with the end of the turn. Several
    # tokens may make it up; headers and a token that ends the text stand in one of them alone.
    last = _through_special_token(closing, special_tokens, _shared(closing, before_question))
    endings: tuple[str | None, ...] = (last,)
    if last is None:
        # A turn ends alike whether a question follows or another answer.
        shared = before_question[: _shared(before_question, before_answer)]
        last = _through_special_token(closing, special_tokens)
        endings = (last, _through_special_token(shared, special_tokens))
    return TurnShape(
        generation_prompt=generation_prompt,
        opened_thought=_rest(beginning, opened) or _rest(earlier_beginning, opened),
        is_headerless=not generation_prompt
        and beginning.startswith(opened)
        and not beginning[len(opened) :].strip(),
        endings=tuple(dict.fromkeys(ending for ending in endings if ending is not None)),
        closing=closing,
        closing_answer=closing if last is None else last,
    )


def _rest(beginning: str, opened: str) -> str:
    """What a generation prompt goes on with where the text has the answer already."""
    return opened[len(beginning) :] if beginning and opened.startswith(beginning) else ""


def _shared(left: str, right: str) -> int:
    """How many characters both begin with."""
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )


def prove_blocks(render_with_blocks: RenderWithBlocks) -> None:
    """Looks whether generation blocks stand where the answers do.

    What a block in a macro holds is rendered before what stands before it, and its place then is
    a wrong one.

    Args:
        render_with_blocks: the chat template.

    Raises:
        RejectError: kind ``template-moves-text``; ``template-refused`` where the template takes no
            plain conversation.
    """
    conversation = [_ASK, _ANSWER, _ASK_AGAIN, _ANSWER_AGAIN]
    try:
        text, spans = render_with_blocks(conversation)
    except RejectError:  # some want a system message
        text, spans = render_with_blocks([_SYSTEM, *conversation])
    blocks = [text[start:end] for start, end in spans]
    if not any(_ANSWER_AGAIN["content"] in block for block in blocks) or any(
        asked["content"] in block for block in blocks for asked in (_ASK, _ASK_AGAIN)
    ):
        raise RejectError(
            "template-moves-text",
            "the generation blocks of the chat template do not stand where it writes the answers",
        )


def _through_special_token(
    text: str, special_tokens: Collection[str], within: int | None = None
) -> str | None:
    """The text up to the end of its first special token, None where it holds none.

    Args:
        text: to look into.
        special_tokens: texts of the tokenizer's special tokens.
        within: characters; given, the last token that ends there or before is taken instead.
    """
    # Of tokens that start alike, the tokenizer takes the longest.
    by_length = sorted(filter(None, special_tokens), key=len, reverse=True)
    pattern = "|".join(map(re.escape, by_length))
    ends = [found.end() for found in re.finditer(pattern, text)] if pattern else []
    if within is not None:
        ends = [end for end in ends if end <= within][-1:]
    return text[: ends[0]] if ends else None
