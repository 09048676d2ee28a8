"""The turns of a conversation, and the tools that it may call, as chat templates take them."""

import json
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import is_plain_json, json_type, list_of, text_of

#: The assistant's role, the one whose turns the loss is taken over.
ASSISTANT: Final = "assistant"

#: Role names in use, and the ones that chat templates know.
_ROLES: Final = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    **dict.fromkeys((ASSISTANT, "gpt", "chatgpt", "bing", "bard", "model"), ASSISTANT),
    **dict.fromkeys(("tool", "observation", "function"), "tool"),
}

#: Fields that some templates read beside role, content and tool calls; each is text.
_TEXT_FIELDS: Final = ("name", "tool_call_id", "reasoning_content", "reasoning", "thinking")

#: Fields that take the loss over a turn or leave it out: OpenAI's, axolotl's two, ms-swift's.
_LOSS_FIELDS: Final = ("weight", "train", "training", "loss")

#: What tables and servers write into fields of a turn that say nothing.
_NO_TEXT: Final[tuple[object, ...]] = (None, "")
_NO_CALL: Final[tuple[object, ...]] = (*_NO_TEXT, {})


def message_of(turn: object) -> dict[str, Any]:
    """One turn with ``role``, ``content`` and, where the turn has them, the other fields.

    Raises:
        RejectError: kinds ``turn-not-object``, ``role-unknown``, ``content-not-text``,
            ``tool-calls-unreadable``, ``turn-refused``, ``turn-without-loss``.
    """
    if not isinstance(turn, dict):
        raise RejectError("turn-not-object", f"a turn is {json_type(turn)}, not an object")
    role = turn.get("role")
    if role is None:
        role = turn.get("from")
    if not isinstance(role, str) or role not in _ROLES:
        raise RejectError("role-unknown", f"role {role!r:.60} is none of {', '.join(_ROLES)}")
    field = "value" if turn.get("content") is None and "value" in turn else "content"
    content = turn.get(field)
    message: dict[str, Any] = {"role": _ROLES[role], "content": content}
    # Nearly every turn has these two fields and no others.
    if content is None or len(turn) > 2:  # noqa: PLR2004
        _add_extras(message, turn)
    if content is None and "tool_calls" in message:
        return message
    message["content"] = (
        content
        if type(content) is str and content.isascii()
        else _content_of(content, f"{field!r} of a turn")
    )
    return message


def tools_of(value: object, field: str) -> tuple[dict[str, Any], ...] | None:
    """Tools as a row's field lists them, itself or as JSON in a text; None where it lists none.

    Raises:
        RejectError: kind ``tools-unreadable``.
    """
    if value is None or value == "":
        return None
    tools = list_of(value)
    if tools is None or not all(isinstance(tool, dict) for tool in tools):
        raise RejectError("tools-unreadable", f"{field!r} is not a list of objects")
    if not is_plain_json(tools):
        raise RejectError("tools-unreadable", f"{field!r} holds what cannot be written as JSON")
    return tuple(tools) or None


def _add_extras(message: dict[str, Any], turn: dict[str, Any]) -> None:
    for field in _TEXT_FIELDS:
        if (value := turn.get(field)) is not None:
            message[field] = text_of(value, f"{field!r} of a turn")
    calls = turn.get("tool_calls")
    if calls is not None and calls != "":
        listed = list_of(calls)
        if listed is None:
            raise RejectError("tool-calls-unreadable", "'tool_calls' of a turn is not a list")
        if listed:
            message["tool_calls"] = [_tool_call(call) for call in listed]
    # What a turn had before there were several calls.
    if (call := turn.get("function_call")) not in _NO_CALL:
        if "tool_calls" in message:
            raise RejectError(
                "tool-calls-unreadable", "a turn has both 'tool_calls' and a 'function_call'"
            )
        message["tool_calls"] = [_tool_call(call)]
    if turn.get("refusal") not in _NO_TEXT:
        raise RejectError(
            "turn-refused", "a turn has a 'refusal', which stands apart from its content"
        )
    if message["role"] == ASSISTANT:
        _check_loss(turn)


def _check_loss(turn: dict[str, Any]) -> None:
    for field in _LOSS_FIELDS:
        if (value := turn.get(field)) is not None and value != 1:
            raise RejectError(
                "turn-without-loss",
                f"{field!r} of an assistant's turn is {value!r:.20}; the loss is taken over each "
                "of them alike",
            )


def _content_of(content: object, what: str) -> str:
    if not isinstance(content, list):
        return text_of(content, what)
    return "".join(_part_text(part, what) for part in content)


def _part_text(part: object, what: str) -> str:
    if isinstance(part, dict):
        if (kind := part.get("type", "text")) != "text":
            raise RejectError(
                "content-not-text", f"{what} has a part of type {kind!r:.60}; only text is taken"
            )
        part = part.get("text")
    return text_of(part, f"a part of {what}")


def _tool_call(call: object) -> dict[str, Any]:
    """Called with arguments as an object, because templates iterate over them."""
    # Without its envelope, as Hermes and Qwen data have it, a call is the function itself.
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RejectError("tool-calls-unreadable", "a tool call is not an object")
    name = function.get("name")
    if not isinstance(name, str):
        raise RejectError(
            "tool-calls-unreadable", f"the name of a tool call is {json_type(name)}, not text"
        )
    plain: dict[str, Any] = {"type": "function"}
    if (call_id := call.get("id")) is not None:
        plain["id"] = call_id if isinstance(call_id, str) else _number_text(call_id)
    plain["function"] = {"name": name, "arguments": _arguments(function.get("arguments"), name)}
    if not is_plain_json(plain):
        raise RejectError(
            "tool-calls-unreadable", f"the call of {name!r:.60} cannot be written as JSON"
        )
    return plain


def _number_text(call_id: object) -> str:
    if type(call_id) is not int:
        raise RejectError(
            "tool-calls-unreadable", f"the id of a tool call is {json_type(call_id)}, not text"
        )
    return str(call_id)


def _arguments(value: object, name: str) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise RejectError(
            "tool-calls-unreadable", f"the arguments of the call of {name!r:.60} are no object"
        )
    return value
