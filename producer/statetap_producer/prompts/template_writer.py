"""Conversations through one chat template: their text, and where the assistant speaks in it."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import ChatTemplate, Message, Span
from statetap_producer.prompts.dropped_text import refuse_dropped_text, refuse_dropped_tools
from statetap_producer.prompts.loss_mask import answer_spans
from statetap_producer.prompts.template_messages import (
    with_empty_contents,
    with_known_reasoning,
    with_text_arguments,
)
from statetap_producer.prompts.turn_shape import TurnShape, learn_turn_shape, prove_blocks
from statetap_producer.reading.conversation import Conversation

Tools = Sequence[dict[str, Any]] | None

#: What Jinja writes for a content that is not there.
_NO_CONTENT: Final = "None"


class WrittenConversation(NamedTuple):
    """A conversation as a template wrote it."""

    text: str
    #: The messages as the template took them.
    messages: Sequence[Message]
    tools: Tools
    #: Character spans of the generation blocks; None where the template has none.
    blocks: list[Span] | None


class TemplateWriter:
    """Renders conversations, and finds the answers in them.

    Args:
        template: the chat template.
        special_tokens: texts of the tokenizer's special tokens.
    """

    def __init__(self, template: ChatTemplate, special_tokens: tuple[str, ...]) -> None:
        self._template = template
        self._special_tokens = special_tokens

    def write(self, conversation: Conversation) -> WrittenConversation:
        """The text of a conversation.

        Raises:
            RejectError: kind ``template-refused``, ``template-drops-text``,
                ``reasoning-ambiguous`` or, of blocks at a wrong place, ``template-moves-text``.
        """
        messages, tools = with_known_reasoning(conversation.messages), conversation.tools
        try:
            written = self._with_contents(messages, tools)
        except RejectError as error:
            with_text = with_text_arguments(messages)
            if error.kind != "template-refused" or with_text is None:
                raise
            written = self._with_contents(with_text, tools)
        if tools:
            refuse_dropped_tools(
                written.text, tools, lambda: self._written(written.messages, None).text
            )
        return written

    def answers(self, written: WrittenConversation, stop: int) -> list[Span]:
        """Character spans of the assistant's turns, ascending.

        Args:
            written: by this writer.
            stop: characters of the text that are planned; later answers may be missing.

        Raises:
            RejectError: kind ``template-drops-text`` and those of ``answer_spans``.
        """
        render = partial(_render, self._template, written.tools)
        text, messages = written.text, written.messages
        if written.blocks is not None:
            # A block may hold several turns, or a part of one.
            refuse_dropped_text(text, messages, render, None)
            return written.blocks
        spans = answer_spans(
            text, messages, render, self._turn_shape, self._special_tokens, stop=stop
        )
        refuse_dropped_text(text, messages, render, spans, is_cut=stop < len(text))
        return spans

    @cached_property
    def _turn_shape(self) -> TurnShape:
        return learn_turn_shape(partial(_render, self._template, None), self._special_tokens)

    @cached_property
    def _has_proven_blocks(self) -> bool:
        if self._template.has_generation_block:
            prove_blocks(partial(self._template.render_with_blocks, tools=None))
        return self._template.has_generation_block

    def _with_contents(self, messages: Sequence[Message], tools: Tools) -> WrittenConversation:
        """Written with "" for contents that are None, where the template would print these."""
        written = self._written(messages, tools)
        if _NO_CONTENT not in written.text:
            return written
        num_missing = sum(message["content"] is None for message in messages)
        if not num_missing:
            return written
        try:
            without = self._written(with_empty_contents(messages), tools)
        except RejectError:
            return written
        is_printed = _num_missing(written.text) == _num_missing(without.text) + num_missing
        num_printed = num_missing * len(_NO_CONTENT)
        is_all = len(written.text) == len(without.text) + num_printed
        return without if is_printed and is_all else written

    def _written(self, messages: Sequence[Message], tools: Tools) -> WrittenConversation:
        if self._has_proven_blocks:
            text, blocks = self._template.render_with_blocks(messages, tools)
            return WrittenConversation(text, messages, tools, blocks)
        text = self._template.render(messages, tools)
        return WrittenConversation(text, messages, tools, None)


def _num_missing(text: str) -> int:
    return text.count(_NO_CONTENT)


def _render(
    template: ChatTemplate,
    tools: Tools,
    messages: Sequence[Message],
    is_open: bool,  # noqa: FBT001 - turn_shape.Render
) -> str:
    return template.render(messages, tools, is_open=is_open)
