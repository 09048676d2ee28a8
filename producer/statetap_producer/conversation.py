"""A conversation, and how one line of a dataset becomes one.

Shapes that are read: ``conversations`` or ``messages``, each a list of ``role``/``content`` or
``from``/``value``; or ``prompt`` and ``response``. ``id`` is optional.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statetap_contract import RejectError

#: The assistant's role, the one whose turns the loss is taken over.
ASSISTANT: Final = "assistant"

#: Role names in use, and the ones that chat templates know.
_ROLES: Final = {
    "system": "system",
    "user": "user",
    "human": "user",
    ASSISTANT: ASSISTANT,
    "gpt": ASSISTANT,
    "tool": "tool",
}

#: Kinds of a line that is no JSON at all; a file with no other lines is no dataset.
NOT_JSON_KINDS: Final = ("row-not-utf8", "row-not-json")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn."""

    #: ``system``, ``user``, ``assistant`` or ``tool``.
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """One row of a dataset."""

    messages: tuple[Message, ...]
    #: Line in the dataset, from 1.
    line: int
    #: The row's own ``id``, None where it has none.
    source_id: str | None


def parse_conversation(raw: bytes, line: int) -> Conversation:
    """Reads one line of JSON.

    Raises:
        RejectError: the row is left out. Kinds ``row-not-utf8``, ``row-not-json``,
            ``row-not-object``, ``shape-unknown``, ``conversation-empty``, ``turn-not-object``,
            ``role-unknown``, ``content-not-text``.
    """
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError as error:
        raise RejectError("row-not-utf8", "the row is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise RejectError("row-not-json", "the row is not JSON") from error
    if not isinstance(row, dict):
        raise RejectError("row-not-object", f"the row is {_json_type(row)}, not an object")
    source_id = row.get("id")
    if type(source_id) is int:
        source_id = str(source_id)
    if not isinstance(source_id, str) or not _is_text(source_id):
        source_id = None
    return Conversation(_messages_of(row), line, source_id)


def _messages_of(row: Mapping[str, object]) -> tuple[Message, ...]:
    for field in ("conversations", "messages"):
        turns = row.get(field)
        if isinstance(turns, list):
            if not turns:
                raise RejectError("conversation-empty", f"{field!r} holds no turns")
            return tuple(map(_message_of, turns))
    if "prompt" in row and "response" in row:
        return (
            Message("user", _text(row["prompt"], "'prompt'")),
            Message(ASSISTANT, _text(row["response"], "'response'")),
        )
    raise RejectError(
        "shape-unknown",
        "the row has none of 'conversations', 'messages' (a list), 'prompt' with 'response'",
    )


def _message_of(turn: object) -> Message:
    if not isinstance(turn, dict):
        raise RejectError("turn-not-object", f"a turn is {_json_type(turn)}, not an object")
    speaker, text = ("from", "value") if "from" in turn else ("role", "content")
    role = turn.get(speaker)
    if not isinstance(role, str) or role not in _ROLES:
        raise RejectError("role-unknown", f"role {role!r:.60} is none of {', '.join(_ROLES)}")
    return Message(_ROLES[role], _text(turn.get(text), f"{text!r} of a turn"))


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise RejectError("content-not-text", f"{what} is {_json_type(value)}, not text")
    if not _is_text(value):
        raise RejectError("content-not-text", f"{what} holds half a surrogate pair")
    return value


def _is_text(value: str) -> bool:
    """JSON may hold lone surrogates, which no tokenizer and no file takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
