"""A model's chat template: foreign code that turns messages into text."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from statetap_contract import RejectError
from transformers.utils.chat_template_utils import render_jinja_template

#: A turn, as templates take it.
Message = Mapping[str, Any]

#: Half-open range, of characters or of tokens.
Span = tuple[int, int]

#: What transformers itself takes as the sign that a template marks the assistant's text.
_GENERATION_BLOCK: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")

#: Templates that put today's date into the system message get this one, because the same dataset
#: must give the same plan tomorrow. It is the date that Llama 3's template falls back to.
_TEMPLATE_DATE: Final = datetime(2024, 7, 26, tzinfo=UTC)


class ChatTemplate:
    """Renders messages in transformers' sandbox.

    Args:
        source: the template, in Jinja.
        special_tokens: what it may call by name, such as ``bos_token``.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._source = source
        self._values = {**special_tokens, "strftime_now": _TEMPLATE_DATE.strftime}
        #: Digest of the template.
        self.digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
        #: Whether the template's author marked what the assistant says.
        self.has_generation_block = _GENERATION_BLOCK.search(source) is not None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        is_open: bool = False,
    ) -> str:
        """The text of messages; when open, with the prompt for the next answer.

        Raises:
            RejectError: kind ``template-refused``.
        """
        return self._render(messages, tools, is_open=is_open, has_blocks=False)[0]

    def render_with_blocks(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[str, list[Span]]:
        """The text of messages, and the character spans of its generation blocks.

        Raises:
            RejectError: kind ``template-refused``.
        """
        return self._render(messages, tools, is_open=False, has_blocks=True)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        is_open: bool,
        has_blocks: bool,
    ) -> tuple[str, list[Span]]:
        try:
            texts, spans = render_jinja_template(
                # Lists, because templates add lists to them.
                conversations=[list(messages)],
                tools=None if tools is None else list(tools),
                chat_template=self._source,
                add_generation_prompt=is_open,
                return_assistant_tokens_mask=has_blocks,
                **self._values,
            )
            text: str = texts[0]
            if not text.isascii():
                text.encode()  # half a surrogate pair would stop the batch in the tokenizer
        # A template is foreign code and may raise anything: its own raise_exception, the
        # sandbox's refusals, RecursionError, MemoryError.
        except Exception as error:
            raise RejectError(
                "template-refused", f"the chat template refuses the conversation: {error!s:.200}"
            ) from error
        return text, spans[0] if has_blocks else []
