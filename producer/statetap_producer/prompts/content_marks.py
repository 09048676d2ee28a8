"""Marks at the ends of messages' contents, which show where a chat template puts them.

A mark is a character of Unicode's private use that the text does not hold, one for each message.
White space that ends a content stays behind its mark, so that a template that trims it changes
nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import Message
from statetap_producer.reading.turns import ASSISTANT

#: First and last characters of the areas for private use; the smallest has 6,400.
_AREAS: Final = (("\ue000", "\uf8ff"), ("\U000f0000", "\U000ffffd"), ("\U00100000", "\U0010fffd"))

#: Roles whose messages templates write whether they have content or not.
_MAY_BE_BLANK: Final = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a message's content ends in a text from which the marks were taken out."""

    #: Which message, from 0.
    message: int
    #: In characters.
    position: int


class ContentMarks:
    """Marks for the messages of one conversation.

    Args:
        text: the rendered conversation.
        has_blanks: whether questions and results without content are marked too. To a template
            that asks whether there is any, a mark is some.
        has_answers: whether the assistant's messages are marked too, where they have content.

    Raises:
        RejectError: kind ``template-moves-text``: the text holds characters of all areas.
    """

    def __init__(self, text: str, *, has_blanks: bool, has_answers: bool) -> None:
        self._has_blanks = has_blanks
        self._has_answers = has_answers
        for first, last in _AREAS:
            self._first = ord(first)
            self._any = re.compile(f"[{first}-{last}]")
            if not self._any.search(text):
                return
        raise RejectError(
            "template-moves-text",
            "the chat template moves text, and the conversation holds every character that could "
            "show where",
        )

    def mark(self, messages: Sequence[Message]) -> list[Message]:
        """The same messages, with marks in their contents."""
        return [self._marked(number, message) for number, message in enumerate(messages)]

    def _marked(self, number: int, message: Message) -> Message:
        content = message["content"]
        if content is None or (message["role"] == ASSISTANT and not self._has_answers):
            return message
        if not content.strip() and not (self._has_blanks and message["role"] in _MAY_BE_BLANK):
            return message
        end = len(content.rstrip())
        return {**message, "content": content[:end] + chr(self._first + number) + content[end:]}

    def take_out(self, marked: str) -> tuple[str, list[Mark]]:
        """A rendered text without its marks, and where these stood, in order."""
        pieces, marks = [], []
        start = length = 0
        for found in self._any.finditer(marked):
            pieces.append(marked[start : found.start()])
            length += found.start() - start
            start = found.end()
            marks.append(Mark(ord(found.group()) - self._first, length))
        pieces.append(marked[start:])
        return "".join(pieces), marks
