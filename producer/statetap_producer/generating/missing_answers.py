"""Which turns of a conversation the model is asked for."""

from collections.abc import Mapping, Sequence
from typing import Any

from statetap_contract import RejectError

from statetap_producer.reading.conversation import Conversation, PlainText, TokenIds
from statetap_producer.reading.turns import ASSISTANT

#: Roles that are answered.
_ASKING = ("user", "tool")


def conversation_in(content: Conversation | PlainText | TokenIds) -> Conversation:
    """The conversation of a row. Raises RejectError, kind ``not-a-conversation``."""
    if not isinstance(content, Conversation):
        what = "plain text" if isinstance(content, PlainText) else "token ids"
        raise RejectError("not-a-conversation", f"the row is {what}, which nobody can answer")
    return content


def turns_to_ask(messages: Sequence[Mapping[str, Any]], *, is_replacing: bool) -> list[int]:
    """Numbers of the turns that the model is asked for; one past the last is a turn to be added.

    Replacing leaves alone what answers nobody, as a greeting does, and a turn that tools have
    answered: what they said belongs to the calls in it.

    Raises:
        RejectError: kind ``nothing-to-answer``: the conversation ends with a turn that nobody
            answers, or holds no answer.
    """
    roles = [message["role"] for message in messages]
    asked = [
        number
        for number, role in enumerate(roles)
        if role == ASSISTANT
        and is_replacing
        and number > 0
        and roles[number - 1] in _ASKING
        and roles[number + 1 : number + 2] != ["tool"]
    ]
    if roles[-1] in _ASKING:
        asked.append(len(roles))
    elif roles[-1] != ASSISTANT:
        raise RejectError(
            "nothing-to-answer", f"the conversation ends with a turn of the {roles[-1]}"
        )
    return asked
