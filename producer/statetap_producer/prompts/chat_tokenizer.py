"""From what rows say to prompts, through the model's own tokenizer and chat template."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from statetap_contract import ModelFolder, Prompt, RejectError, StatetapError, UsageError

from statetap_producer.prompts.chat_template import ChatTemplate, Span
from statetap_producer.prompts.model_tokenizer import ModelTokenizer, files_digest
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.prompts.template_writer import TemplateWriter, Tools, WrittenConversation
from statetap_producer.prompts.token_spans import token_spans
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
        """Digest of the chat templates, "" where there are none."""
        try:
            templates = self._tokenizer.template, self._tokenizer.tool_template
        except StatetapError:
            return ""
        digests = dict.fromkeys(template.digest for template in templates if template)
        if len(digests) <= 1:
            return "".join(digests)
        return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()

    def prompts(
        self, contents: Sequence[Conversation | PlainText | TokenIds]
    ) -> list[TokenisedPrompt | RejectError]:
        """A prompt for each content, or why there is none.

        Rejections are of the kinds ``prompt-empty``, ``too-long``,
        ``no-loss-tokens``, ``all-loss-tokens``, ``token-outside-vocabulary`` and those of
        ``TemplateWriter``.

        Raises:
            MissingError: kind ``tokenizer-missing``: there is no tokenizer, and a row needs it.
            UsageError: kind ``tokenizer-slow`` or ``template-missing``, likewise.
        """
        results: dict[int, TokenisedPrompt | RejectError] = {}
        texts: dict[int, PlainText | WrittenConversation] = {}
        for number, content in enumerate(contents):
            try:
                if isinstance(content, TokenIds):
                    results[number] = self._settled(content.token_ids, content.loss_spans)
                elif isinstance(content, PlainText):
                    texts[number] = content
                else:
                    texts[number] = self._writer(content.tools).write(content)
            except RejectError as error:
                results[number] = error
        if texts:
            encodings = self._tokenizer.encode([text.text for text in texts.values()])
            for (number, text), encoding in zip(texts.items(), encodings, strict=True):
                try:
                    results[number] = self._tokenised(encoding, text)
                except RejectError as error:
                    results[number] = error
        return [results[number] for number in range(len(contents))]

    @cached_property
    def _tokenizer(self) -> ModelTokenizer:
        return ModelTokenizer(self._model.path)

    def _writer(self, tools: Tools) -> TemplateWriter:
        return self._plain_writer if tools is None else self._tool_writer

    @cached_property
    def _plain_writer(self) -> TemplateWriter:
        return self._writer_of(self._tokenizer.template)

    @cached_property
    def _tool_writer(self) -> TemplateWriter:
        plain, with_tools = self._tokenizer.template, self._tokenizer.tool_template
        if plain and with_tools and plain.digest == with_tools.digest:
            return self._plain_writer
        return self._writer_of(with_tools)

    def _writer_of(self, template: ChatTemplate | None) -> TemplateWriter:
        if template is None:
            raise UsageError(
                "template-missing",
                f"the tokenizer in {self._model.path} has no chat template; put one into "
                "chat_template.jinja",
            )
        return TemplateWriter(template, self._tokenizer.special_tokens)

    def _tokenised(
        self, encoding: Any, content: PlainText | WrittenConversation
    ) -> TokenisedPrompt:
        ids: list[int] = encoding.ids
        tokenizer = self._tokenizer
        if isinstance(content, PlainText):
            if ids[: len(tokenizer.opening)] != tokenizer.opening:
                ids = tokenizer.opening + ids
            token_ids = array("i", ids + tokenizer.closing)
            return self._settled(token_ids, ((0, len(token_ids)),), is_text=True)
        # Before the answers are looked for, which takes long in a long conversation.
        stop = len(content.text)
        if self._is_to_be_cut(len(ids)):
            _, stop = encoding.token_to_chars(self._rules.max_tokens - 1)
        spans = token_spans(
            len(ids),
            encoding.token_to_chars,
            lambda token: tokenizer.is_added(ids[token]),
            self._writer(content.tools).answers(content, stop),
        )
        return self._settled(array("i", ids), spans, is_text=True)

    def _is_to_be_cut(self, num_tokens: int) -> bool:
        if not num_tokens:
            raise RejectError("prompt-empty", "the row's text gives no tokens")
        is_longer = num_tokens > self._rules.max_tokens
        if is_longer and not self._rules.is_cut:
            raise RejectError(
                "too-long",
                f"the conversation has {num_tokens} tokens, more than {self._rules.max_tokens}; "
                "--cut plans its beginning",
            )
        return is_longer

    def _settled(
        self, token_ids: "array[int]", spans: Sequence[Span], *, is_text: bool = False
    ) -> TokenisedPrompt:
        """Holds a prompt against the rules.

        Args:
            token_ids: of the whole prompt.
            spans: where its loss is taken.
            is_text: whether the ids come from the model's own tokenizer.
        """
        rules, vocab_size = self._rules, self._model.vocab_size
        is_cut = self._is_to_be_cut(len(token_ids))
        if is_cut:
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


def _clipped(spans: Sequence[Span], num_tokens: int) -> list[Span]:
    return [(start, min(end, num_tokens)) for start, end in spans if start < num_tokens]
