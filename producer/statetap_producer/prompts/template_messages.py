"""A conversation's messages, changed to what a chat template can take."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import Message

#: Names in use for the reasoning beside a content; a template knows one or two of them.
REASONING_FIELDS: Final = ("reasoning_content", "reasoning", "thinking")

#: Fields of a message that can hold no reasoning: role and content.
_PLAIN_FIELDS: Final = 2


def with_known_reasoning(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with their reasoning under every name that a template may read.

    Raises:
        RejectError: kind ``reasoning-ambiguous``: two names with different text.
    """
    if max(map(len, messages), default=0) <= _PLAIN_FIELDS:
        return messages
    return [_with_known_reasoning(turn, message) for turn, message in enumerate(messages)]


def with_text_arguments(messages: Sequence[Message]) -> list[Message] | None:
    """The messages with the arguments of tool calls as JSON text; None where there are none.

    Some templates iterate over arguments, others put them together with text.
    """
    if not any(message.get("tool_calls") for message in messages):
        return None
    return [
        {**message, "tool_calls": [_with_text(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def with_empty_contents(messages: Sequence[Message]) -> list[Message]:
    """The messages with "" for a content that is None."""
    return [
        {**message, "content": ""} if message["content"] is None else message
        for message in messages
    ]


def _with_known_reasoning(turn: int, message: Message) -> Message:
    given = {text for field in REASONING_FIELDS if (text := message.get(field))}
    if not given:
        return message
    if len(given) > 1:
        raise RejectError(
            "reasoning-ambiguous",
            f"turn {turn + 1} has different reasoning under two of the names "
            f"{', '.join(REASONING_FIELDS)}; keep one",
        )
    return {**message, **dict.fromkeys(REASONING_FIELDS, given.pop())}


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
