"""What one row of a dataset says: a conversation, plain text, or token ids.

Shapes that are read, and which of them counts where a row has several:

    input_ids                    token ids; loss_mask (or completion_mask, assistant_masks) or
                                 labels say where the loss is taken, attention_mask what is padding
    conversations, messages      turns as role/content or from/value; the first that has any;
                                 response, completion or output may hold the answer to the last
    prompt with response         or completion; each is text or a list of turns
    instruction with output      input, where there is one, follows the instruction
    text                         plain text
    prompt                       a question without its answer

A row that is itself a list is a list of turns. Lists of turns, of tools and of tool calls may be
written as JSON in a text. ``system`` (or ``system_prompt``) and ``tools`` (or ``functions``) of a
row belong to its conversation, ``history`` goes before its question; ``id`` is kept.
"""

import json
from array import array
from dataclasses import dataclass
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.reading.ready_ids import ready_ids
from statetap_producer.reading.row_turns import (
    answered_turns,
    asked_turns,
    has_empty_list,
    listed_turns,
    tools_of_row,
)
from statetap_producer.reading.row_values import is_text, object_of, text_of

#: All fields of a row that are looked at.
KNOWN_FIELDS: Final = frozenset(
    (
        "id",
        "input_ids",
        "attention_mask",
        "loss_mask",
        "completion_mask",
        "assistant_masks",
        "labels",
        "conversations",
        "messages",
        "prompt",
        "response",
        "completion",
        "instruction",
        "input",
        "output",
        "text",
        "history",
        "system",
        "system_prompt",
        "tools",
        "functions",
    )
)

#: Fields that hold a system message.
_SYSTEMS: Final = ("system", "system_prompt")

#: Fields that belong to a conversation whatever holds its turns; many rows have none.
_AROUND: Final = frozenset((*_SYSTEMS, "tools", "functions"))

#: Kinds of a row that is no JSON at all; a file with no other rows is no dataset.
NOT_JSON_KINDS: Final = ("row-not-utf8", "row-not-json")


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, as a chat template takes them."""

    #: Each has ``role`` (system, developer, user, assistant, tool) and ``content`` (text; None only
    #: beside ``tool_calls``), and where the row has them ``name``, ``tool_calls``,
    #: ``tool_call_id``, ``reasoning_content``, ``reasoning``, ``thinking``.
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None


@dataclass(frozen=True, slots=True)
class PlainText:
    """Text that no template is put around."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A prompt that was tokenised elsewhere."""

    #: int32, at least one, none negative.
    token_ids: "array[int]"
    #: Half-open, in tokens, ascending; may be empty.
    loss_spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a dataset."""

    content: Conversation | PlainText | TokenIds
    #: The row's own ``id``, None where it has none.
    source_id: str | None


def parse_row(raw: bytes | dict[str, Any] | RejectError) -> Row:
    """Reads one row: a line of JSON, or fields that were decoded; a rejection is passed on.

    Raises:
        RejectError: the row is left out. Kinds ``row-not-utf8``, ``row-not-json``,
            ``row-not-object``, ``shape-unknown``, ``conversation-empty``, ``content-not-text``,
            ``system-twice``, and those of ``listed_turns``, ``answered_turns``, ``tools_of_row``
            and ``ready_ids``.
    """
    if isinstance(raw, RejectError):
        raise raw
    row = _decode(raw) if isinstance(raw, bytes) else raw
    return Row(_content_of(row), _id_of(row))


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise RejectError("row-not-utf8", "the row is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RejectError("row-not-json", "the row is not JSON") from error
    return object_of(row)


def _id_of(row: dict[str, Any]) -> str | None:
    source_id = row.get("id")
    if isinstance(source_id, str):
        return source_id if is_text(source_id) else None
    return str(source_id) if type(source_id) is int else None


def _content_of(row: dict[str, Any]) -> Conversation | PlainText | TokenIds:
    if row.get("input_ids") is not None:
        return TokenIds(*ready_ids(row))
    messages = listed_turns(row) or answered_turns(row)
    if messages is None and (text := row.get("text")) is not None:
        if text == "":
            raise RejectError("conversation-empty", "'text' is empty")
        return PlainText(text_of(text, "'text'"))
    if messages is None and row.get("prompt") is not None:
        messages = asked_turns(row)
    if messages is None:
        raise _nothing_in(row)
    if not messages:
        raise RejectError("conversation-empty", "the row holds no turns")
    if _AROUND.isdisjoint(row):
        return Conversation(tuple(messages), None)
    for field in _SYSTEMS:
        if (system := row.get(field)) is not None and system != "":
            messages = _with_system(messages, text_of(system, repr(field)), field)
    return Conversation(tuple(messages), tools_of_row(row))


def _with_system(messages: list[dict[str, Any]], system: str, field: str) -> list[dict[str, Any]]:
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": system}, *messages]
    if messages[0]["content"] != system:
        raise RejectError(
            "system-twice", f"{field!r} and the conversation's other system message are different"
        )
    return messages


def _nothing_in(row: dict[str, Any]) -> RejectError:
    if has_empty_list(row):
        return RejectError("conversation-empty", "the row's list of turns is empty")
    return RejectError(
        "shape-unknown",
        "the row has none of 'conversations' or 'messages' (a list), 'prompt' with 'response' or "
        "'completion', 'instruction' with 'output', 'text', 'input_ids'",
    )
