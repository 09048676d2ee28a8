"""Values of a dataset's row, checked before anything is made of them."""

import json
from collections.abc import Iterator
from typing import Any, Final

from statetap_contract import RejectError

#: Number of a row or line, from 1, and its content: a line of JSON, fields that came decoded, or
#: why it has none.
NumberedRows = Iterator[tuple[int, bytes | dict[str, Any] | RejectError]]


def json_type(value: object) -> str:
    """What a value is, in the words of a sentence."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    numbers = (int, float)
    return names.get(type(value)) or ("a number" if type(value) in numbers else "no JSON value")


def is_text(value: str) -> bool:
    """JSON may hold lone surrogates, which no tokenizer and no file takes."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(value: object, what: str) -> str:
    """The value, which must be text. Raises RejectError, kind ``content-not-text``."""
    if not isinstance(value, str):
        raise RejectError("content-not-text", f"{what} is {json_type(value)}, not text")
    if not is_text(value):
        raise RejectError("content-not-text", f"{what} holds half a surrogate pair")
    return value


def list_of(value: object) -> list[Any] | None:
    """A list, also one that is written as JSON in a text; None for anything else."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, list) else None


#: Fields that give a row its content, which no turn has.
_ROW_FIELDS: Final = ("input_ids", "conversations", "messages", "prompt", "instruction", "text")


def is_turn(value: object) -> bool:
    """Whether a value is one turn of a conversation, and not a row."""
    return (
        isinstance(value, dict)
        and (value.get("role") is not None or value.get("from") is not None)
        and all(value.get(field) is None for field in _ROW_FIELDS)
    )


def object_of(value: object) -> dict[str, Any]:
    """A row's object; a bare list of turns becomes its ``messages``.

    Raises:
        RejectError: kind ``row-not-object``.
    """
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {"messages": value}
    raise RejectError("row-not-object", f"the row is {json_type(value)}, not an object")


def is_plain_json(value: object) -> bool:
    """Whether a template can write the value out as JSON, and a tokenizer take the result."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
