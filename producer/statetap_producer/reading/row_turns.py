"""The turns of a row and the tools they may call, whichever of its fields hold them."""

from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import is_turn, list_of, text_of
from statetap_producer.reading.turns import ASSISTANT, message_of, tools_of

#: Fields that hold a list of turns; the first that has any counts.
_LISTS: Final = ("conversations", "messages")

#: Fields that hold what is answered to a prompt, and what may follow a list of turns.
_ANSWERS: Final = ("response", "completion")
_LAST_ANSWERS: Final = (*_ANSWERS, "output")

#: Fields that may add to a list of turns; nearly no row has any.
_BESIDE: Final = frozenset(("history", *_LAST_ANSWERS))

#: What a table holds where a row has nothing to say.
_NOTHING: Final[tuple[object, ...]] = (None, "", [])


def listed_turns(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The turns of a row that lists them, and the answer where that stands apart; else None.

    Raises:
        RejectError: kinds ``answer-twice``, ``history-unreadable``, and those of ``message_of``.
    """
    for field in _LISTS:
        if (value := row.get(field)) is not None and (turns := list_of(value)):
            messages = list(map(message_of, turns))
            return messages if _BESIDE.isdisjoint(row) else _with_others(row, messages)
    return None


def answered_turns(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Question and answer of a row, behind its ``history``; None where it has not both.

    Raises:
        RejectError: kinds ``answer-twice``, ``history-unreadable``, ``content-not-text``, and
            those of ``message_of``.
    """
    if row.get("prompt") is not None:
        given = [field for field in _ANSWERS if row.get(field) is not None]
        if given:
            first, *others = [field for field in given if row[field] not in _NOTHING] or given[:1]
            # What a list of turns ends with may be what the answer goes on with.
            messages = asked_turns(row) + _turns_of(row, first, ASSISTANT)
            for field in others:
                messages = _with_answer(messages, field, _turns_of(row, field, ASSISTANT))
            return messages
    if row.get("instruction") is not None and row.get("output") is not None:
        asked = text_of(row["instruction"], "'instruction'")
        if (more := row.get("input")) is not None and more != "":
            asked += "\n\n" + text_of(more, "'input'")
        answered = text_of(row["output"], "'output'")
        return _after_history(row, _exchange(asked, answered), is_text=True)
    return None


def asked_turns(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns of ``prompt``, behind the row's ``history``; errors as of ``answered_turns``."""
    turns = _turns_of(row, "prompt", "user")
    return _after_history(row, turns, is_text=_list_of_turns(row["prompt"]) is None)


def tools_of_row(row: dict[str, Any]) -> tuple[dict[str, Any], ...] | None:
    """``tools``, or ``functions`` as tools; None where the row has neither.

    Raises:
        RejectError: kind ``tools-unreadable``; ``tools-twice``: the two are different.
    """
    tools = tools_of(row.get("tools"), "tools")
    functions = tools_of(row.get("functions"), "functions")
    if functions is None:
        return tools
    wrapped = tuple(
        function if "function" in function else {"type": "function", "function": function}
        for function in functions
    )
    if tools is not None and tools != wrapped:
        raise RejectError("tools-twice", "'tools' and 'functions' of the row are different")
    return wrapped


def has_empty_list(row: dict[str, Any]) -> bool:
    """Whether the row has a list of turns without any."""
    return any(list_of(row.get(field)) == [] for field in _LISTS)


def _with_others(row: dict[str, Any], messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = _after_history(row, messages, is_text=False)
    for field in _LAST_ANSWERS:
        if row.get(field) not in _NOTHING:
            messages = _with_answer(messages, field, _turns_of(row, field, ASSISTANT))
    return messages


def _turns_of(row: dict[str, Any], field: str, role: str) -> list[dict[str, Any]]:
    turns = _list_of_turns(row[field])
    if turns is None:
        return [{"role": role, "content": text_of(row[field], repr(field))}]
    return list(map(message_of, turns))


def _list_of_turns(value: object) -> list[Any] | None:
    """A list, or a text that is one of turns as JSON: other texts that begin so are texts."""
    turns = list_of(value)
    if isinstance(value, str) and not (turns and all(map(is_turn, turns))):
        return None
    return turns


def _exchange(asked: str, answered: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": asked}, {"role": ASSISTANT, "content": answered}]


def _with_answer(
    messages: list[dict[str, Any]], field: str, answer: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The turns and the answer to them, which they may hold already."""
    held = messages[-len(answer) :] if answer else []
    if len(held) == len(answer) and all(
        given.items() <= turn.items() for given, turn in zip(answer, held, strict=True)
    ):
        return messages
    if messages[-1]["role"] == ASSISTANT:
        raise RejectError(
            "answer-twice", f"{field!r} is another answer than the one the turns end with"
        )
    return messages + answer


def _after_history(
    row: dict[str, Any], messages: list[dict[str, Any]], *, is_text: bool
) -> list[dict[str, Any]]:
    """The turns behind those of ``history``, a list of pairs of question and answer."""
    history = row.get("history")
    if history in _NOTHING:
        return messages
    if not is_text:
        raise RejectError(
            "history-unreadable", "the row has a list of turns and a 'history' beside it"
        )
    pairs = list_of(history)
    if pairs is None or not all(map(_is_pair, pairs)):
        raise RejectError(
            "history-unreadable", "'history' is not a list of pairs of question and answer"
        )
    turns = []
    for asked, answered in pairs:
        turns += _exchange(text_of(asked, "'history'"), text_of(answered, "'history'"))
    return turns + messages


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and [type(side) for side in value] == [str, str]
