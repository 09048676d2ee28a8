"""From conversation to prompt, through the model's own tokenizer and chat template."""

import hashlib
import re
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from jinja2.exceptions import TemplateError
from statetap_contract import MissingError, ModelFolder, Prompt, RejectError, UsageError
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from statetap_producer.conversation import Conversation, Message
from statetap_producer.loss_mask import Span, answer_spans, token_spans

#: What transformers itself takes as the sign that a template marks the assistant's text.
_GENERATION_BLOCK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")

#: Templates that put today's date into the system message get this one, because the same dataset
#: must give the same plan tomorrow. It is the date that Llama 3's template falls back to.
_TEMPLATE_DATE: Final = datetime(2024, 7, 26, tzinfo=UTC)

#: Files whose names start so make up a tokenizer.
_TOKENIZER_FILES: Final = ("tokenizer", "special_tokens_map", "added_tokens", "vocab", "merges")


class ChatTokenizer:
    """The tokenizer and chat template of a model folder. Nothing is fetched from a hub.

    Args:
        model: the folder.
        max_tokens: longest prompt that is accepted.

    Raises:
        MissingError: kind ``tokenizer-missing``.
        UsageError: kind ``tokenizer-slow`` or ``template-missing``.
    """

    def __init__(self, model: ModelFolder, max_tokens: int) -> None:
        self._vocab_size = model.vocab_size
        #: Longest prompt that is accepted.
        self.max_tokens = max_tokens
        tokenizer = _load(model.path)
        #: Digest of the tokenizer's files.
        self.digest = _files_digest(model.path)
        self._template = _template_of(tokenizer, model.path)
        #: Digest of the chat template.
        self.template_digest = hashlib.blake2b(self._template.encode(), digest_size=16).hexdigest()
        self._has_generation_block = _GENERATION_BLOCK.search(self._template) is not None
        self._template_values = {
            **tokenizer.special_tokens_map,
            "strftime_now": _TEMPLATE_DATE.strftime,
        }
        self._special_tokens = {
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        }
        # The bare tokenizer: never cut, never padded, no BOS beside the one that the template
        # writes, and offsets that do not step over blanks.
        self._tokenizer = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.post_processor = None

    def prompt(self, conversation: Conversation) -> Prompt:
        """Token ids and loss mask.

        Raises:
            RejectError: kinds ``template-refused``, ``no-assistant-tokens``, ``too-long``,
                ``token-outside-vocabulary`` and those of ``answer_spans``.
        """
        messages = conversation.messages
        text, char_spans = self._render(messages, is_open=False)
        if not self._has_generation_block:
            char_spans = answer_spans(messages, self._render_text, self._special_tokens)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        num_tokens = len(encoding.ids)
        if num_tokens > self.max_tokens:
            raise RejectError(
                "too-long", f"the conversation has {num_tokens} tokens, more than {self.max_tokens}"
            )
        spans = token_spans(encoding.offsets, char_spans)
        if not spans:
            raise RejectError("no-assistant-tokens", "no token is the assistant's")
        token_ids = array("i", encoding.ids)
        if (largest := max(token_ids)) >= self._vocab_size:
            raise RejectError(
                "token-outside-vocabulary",
                f"token id {largest} is beyond the model's vocabulary of {self._vocab_size}",
            )
        return Prompt(token_ids, spans)

    def _render_text(self, messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - loss_mask.Render
        return self._render(messages, is_open=is_open)[0]

    def _render(self, messages: Sequence[Message], *, is_open: bool) -> tuple[str, list[Span]]:
        """The text, and the character spans of its generation blocks."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            texts, spans = render_jinja_template(
                conversations=[turns],
                chat_template=self._template,
                add_generation_prompt=is_open,
                return_assistant_tokens_mask=self._has_generation_block,
                **self._template_values,
            )
        # A template is foreign code: its own raise_exception comes as TemplateError, its slips
        # as the rest.
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise RejectError(
                "template-refused", f"the chat template refuses the conversation: {error!s:.200}"
            ) from error
        return texts[0], spans[0] if self._has_generation_block else []


def _load(folder: Path) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # the Rust tokenizer raises bare Exception
        raise MissingError(
            "tokenizer-missing",
            f"no tokenizer can be loaded from {folder} ({_first_line(error)}); copy the model's "
            "tokenizer files there",
        ) from error
    if not tokenizer.is_fast:
        raise UsageError(
            "tokenizer-slow",
            f"the tokenizer in {folder} cannot say which text a token stands for; convert it to "
            "a tokenizer.json",
        )
    return tokenizer


def _template_of(tokenizer: Any, folder: Path) -> str:
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise UsageError(
            "template-missing",
            f"the tokenizer in {folder} has no chat template; put one into chat_template.jinja",
        ) from error


def _files_digest(folder: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(folder.iterdir()):
        if file.name.startswith(_TOKENIZER_FILES) and file.is_file():
            content = file.read_bytes()
            digest.update(f"{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
