"""From what rows say to prompts, through the model's own tokenizer and chat template."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from statetap_contract import ModelFolder, Prompt, RejectError, StatetapError, UsageError

from statetap_producer.prompts.chat_template import ChatTemplate, Message, Span, with_text_arguments
from statetap_producer.prompts.loss_mask import answer_spans
from statetap_producer.prompts.model_tokenizer import ModelTokenizer, files_digest
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.prompts.token_spans import token_spans
from statetap_producer.prompts.turn_shape import TurnShape, learn_turn_shape, prove_blocks
from statetap_producer.reading.conversation import Conversation, PlainText, TokenIds


@dataclass(frozen=True, slots=True)
class TokenisedPrompt:
    """A prompt, and whether it is only the beginning of what its row says."""

    prompt: Prompt
    is_cut: bool


class ChatTokenizer:
    """The tokenizer and chat template of a model folder, loaded when a row needs them.

    Args:
        model: the folder.
        rules: which prompts are taken.
    """

    def __init__(self, model: ModelFolder, rules: PromptRules) -> None:
        self._model = model
        self._rules = rules

    @cached_property
    def digest(self) -> str:
        """Digest of the tokenizer's files, "" where there are none."""
        return files_digest(self._model.path)

    @property
    def template_digest(self) -> str:
        """Digest of the chat template, "" where there is none."""
        try:
            return self._template.digest
        except StatetapError:
            return ""

    def prompts(
        self, contents: Sequence[Conversation | PlainText | TokenIds]
    ) -> list[TokenisedPrompt | RejectError]:
        """A prompt for each content, or why there is none.

        Rejections are of the kinds ``template-refused``, ``prompt-empty``, ``too-long``,
        ``no-loss-tokens``, ``all-loss-tokens``, ``token-outside-vocabulary`` and those of
        ``answer_spans``.

        Raises:
            MissingError: kind ``tokenizer-missing``: there is no tokenizer, and a row needs it.
            UsageError: kind ``tokenizer-slow`` or ``template-missing``, likewise.
        """
        results: dict[int, TokenisedPrompt | RejectError] = {}
        texts: dict[int, tuple[str, list[Span] | None]] = {}
        for number, content in enumerate(contents):
            try:
                if isinstance(content, TokenIds):
                    results[number] = self._settled(content.token_ids, content.loss_spans)
                elif isinstance(content, PlainText):
                    texts[number] = content.text, None
                else:
                    texts[number] = self._rendered(content)
            except RejectError as error:
                results[number] = error
        if texts:
            encodings = self._tokenizer.encode([text for text, _ in texts.values()])
            for (number, (_, spans)), encoding in zip(texts.items(), encodings, strict=True):
                try:
                    results[number] = self._tokenised(encoding, spans)
                except RejectError as error:
                    results[number] = error
        return [results[number] for number in range(len(contents))]

    @cached_property
    def _tokenizer(self) -> ModelTokenizer:
        return ModelTokenizer(self._model.path)

    @property
    def _template(self) -> ChatTemplate:
        if self._tokenizer.template is None:
            raise UsageError(
                "template-missing",
                f"the tokenizer in {self._model.path} has no chat template; put one into "
                "chat_template.jinja",
            )
        return self._tokenizer.template

    @cached_property
    def _turn_shape(self) -> TurnShape:
        render = partial(_render, self._template, None)
        return learn_turn_shape(render, self._tokenizer.special_tokens)

    @cached_property
    def _has_proven_blocks(self) -> bool:
        if self._template.has_generation_block:
            prove_blocks(partial(self._template.render_with_blocks, tools=None))
        return self._template.has_generation_block

    def _rendered(self, conversation: Conversation) -> tuple[str, list[Span]]:
        """The text of a conversation, and the character spans of its answers."""
        try:
            return self._with_answers(conversation.messages, conversation.tools)
        except RejectError as error:
            messages = with_text_arguments(conversation.messages)
            if error.kind != "template-refused" or messages is None:
                raise
            return self._with_answers(messages, conversation.tools)

    def _with_answers(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None
    ) -> tuple[str, list[Span]]:
        if self._has_proven_blocks:
            return self._template.render_with_blocks(messages, tools)
        render = partial(_render, self._template, tools)
        text = render(messages, False)
        special_tokens = self._tokenizer.special_tokens
        return text, answer_spans(text, messages, render, self._turn_shape, special_tokens)

    def _tokenised(self, encoding: Any, char_spans: list[Span] | None) -> TokenisedPrompt:
        ids: list[int] = encoding.ids
        tokenizer = self._tokenizer
        if char_spans is None:
            if ids[: len(tokenizer.opening)] != tokenizer.opening:
                ids = tokenizer.opening + ids
            token_ids = array("i", ids + tokenizer.closing)
            return self._settled(token_ids, ((0, len(token_ids)),), is_text=True)
        spans = token_spans(
            len(ids),
            encoding.token_to_chars,
            lambda token: tokenizer.is_added(ids[token]),
            char_spans,
        )
        return self._settled(array("i", ids), spans, is_text=True)

    def _settled(
        self, token_ids: "array[int]", spans: Sequence[Span], *, is_text: bool = False
    ) -> TokenisedPrompt:
        """Holds a prompt against the rules.

        Args:
            token_ids: of the whole prompt.
            spans: where its loss is taken.
            is_text: whether the ids come from the model's own tokenizer.
        """
        rules, vocab_size, num_tokens = self._rules, self._model.vocab_size, len(token_ids)
        if not num_tokens:
            raise RejectError("prompt-empty", "the row's text gives no tokens")
        is_cut = num_tokens > rules.max_tokens
        if is_cut:
            if not rules.is_cut:
                raise RejectError(
                    "too-long",
                    f"the conversation has {num_tokens} tokens, more than {rules.max_tokens}; "
                    "--cut plans its beginning",
                )
            token_ids = token_ids[: rules.max_tokens]
            spans = _clipped(spans, rules.max_tokens)
        if not (is_text and self._tokenizer.largest_id < vocab_size):
            outside = next((token for token in token_ids if not 0 <= token < vocab_size), None)
            if outside is not None:
                raise RejectError(
                    "token-outside-vocabulary",
                    f"token id {outside} is outside the model's vocabulary of {vocab_size}",
                )
        if not spans and not rules.allows_empty_mask:
            raise RejectError(
                "no-loss-tokens",
                "no token is the assistant's; --allow-empty-mask plans the prompt all the same",
            )
        if tuple(spans) == ((0, len(token_ids)),) and not rules.allows_full_mask:
            raise RejectError(
                "all-loss-tokens",
                "the loss would be taken over every token; --allow-full-mask plans the prompt all "
                "the same",
            )
        return TokenisedPrompt(Prompt(token_ids, tuple(spans)), is_cut)


def _render(
    template: ChatTemplate,
    tools: Sequence[dict[str, Any]] | None,
    messages: Sequence[Message],
    is_open: bool,  # noqa: FBT001 - turn_shape.Render
) -> str:
    return template.render(messages, tools, is_open=is_open)


def _clipped(spans: Sequence[Span], num_tokens: int) -> list[Span]:
    return [(start, min(end, num_tokens)) for start, end in spans if start < num_tokens]
