"""Where the assistant speaks, in the text that a chat template without generation block renders.

A turn's answer starts where the text for generating it ends: the messages before it, rendered with
the generation prompt. Where the whole text begins with that text, nothing else needs to be known.
Some templates render earlier turns otherwise once later ones follow; for these, marks in the
contents show which stretch of the one text is which stretch of the other, and the marks are
believed only where both texts without them are exactly what they were.

An answer ends with the end-of-turn token that follows its content, or where the messages up to
this turn, rendered alone, end. What none of this proves is rejected, because a guess would be a
silently wrong mask.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from typing import Final

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import Message, Span
from statetap_producer.prompts.content_marks import ContentMarks, Mark
from statetap_producer.prompts.turn_shape import Render, TurnShape
from statetap_producer.reading.turns import ASSISTANT

_BLANKS: Final = re.compile(r"\s*")

#: Places at which an end is looked for, so that a text made of end tokens ends too.
_MOST_PLACES: Final = 64

#: Each answer takes a rendering of what precedes it: more turns would take minutes.
_MOST_TURNS: Final = 1000


def answer_spans(
    text: str,
    messages: Sequence[Message],
    render: Render,
    shape: TurnShape,
    special_tokens: Sequence[str],
    *,
    stop: int,
) -> list[Span]:
    """Character spans of the assistant's turns in a rendered conversation, ascending.

    A span holds what the model has to produce: all that follows the generation prompt, up to and
    with the end-of-turn token, not the white space that the template puts after it.

    Args:
        text: ``render(messages, False)``.
        messages: the whole conversation.
        render: the chat template.
        shape: what is known of the template.
        special_tokens: texts of the tokenizer's special tokens.
        stop: characters of the text that are asked about; turns that start behind them are not
            looked for.

    Raises:
        RejectError: kind ``assistant-first``, ``template-moves-text``, ``template-refused`` or
            ``too-many-turns``.
    """
    if len(messages) > _MOST_TURNS:
        raise RejectError(
            "too-many-turns",
            f"the conversation has {len(messages)} turns, more than {_MOST_TURNS:,}; split it",
        )
    turns = [turn for turn, message in enumerate(messages) if message["role"] == ASSISTANT]
    if turns and not (shape.generation_prompt or shape.is_headerless):
        raise RejectError(
            "template-moves-text",
            "the chat template has no generation prompt, so where an answer starts is unknown",
        )
    starts = _Starts(text, messages, render, shape)
    ends = _Ends(text, messages, render, shape, tuple(special_tokens), starts)
    spans: list[Span] = []
    for turn in turns:
        start = starts.find(turn)
        if start >= stop < len(text):
            break
        end = ends.find(turn, start)
        if end < start or (spans and start < spans[-1][1]):
            raise _moved(f"puts turn {turn + 1} before the one that precedes it")
        spans.append((start, end))
    return spans


class _Starts:
    """Finds where answers start."""

    def __init__(
        self, text: str, messages: Sequence[Message], render: Render, shape: TurnShape
    ) -> None:
        self._text = text
        self._messages = messages
        self._render = render
        self._shape = shape

    def find(self, turn: int) -> int:
        before = self._text_before(turn)
        start = self._after(before, 0)
        if start is None and turn == 0:
            raise _assistant_first()
        if start is None:
            start = self._by_marks(turn, before)
        return start + self._rest_of_header(turn, before, start)

    def _after(self, before: str, position: int) -> int | None:
        """Where the text ends that the model is given, None if it does not stand at a position.

        A thought that the generation prompt opens may be missing from the text.
        """
        for given in (before, before.removesuffix(self._shape.opened_thought)):
            if self._text.startswith(given, position):
                return position + len(given)
        return None

    def _after_alike(self, before: str, position: int) -> int | None:
        """The same, where white space between a content and the generation prompt may differ."""
        start = self._after(before, position)
        prompt = self._shape.generation_prompt
        if start is not None or not prompt or not before.endswith(prompt):
            return start
        given = before.removesuffix(prompt)
        at = position - len(prompt)
        # An empty turn before this one has the prompt, and no mark behind it.
        for _ in range(given.count(prompt) + 1):
            at = self._text.find(prompt, at + len(prompt))
            if at < 0:
                return None
        if _without_blanks(self._text[position:at]) != _without_blanks(given):
            return None
        return at + len(prompt)

    def _text_before(self, turn: int) -> str:
        """What the model is given to produce a turn."""
        try:
            return self._render(self._messages[:turn], True)
        except RejectError as error:
            if turn == 0:
                raise _assistant_first() from error
            raise

    def _by_marks(self, turn: int, before: str) -> int:
        content_marks, places = self.marks
        plain, known = content_marks.take_out(
            self._render(content_marks.mark(self._messages[:turn]), True)
        )
        last = known[-1] if known else None
        here = [at for at, place in enumerate(places) if last and place.message == last.message]
        if (
            last is None
            or plain != before
            or len(here) != 1
            or any(place.message >= turn for place in places[: here[0]])
        ):
            raise _moved(f"shows what precedes turn {turn + 1} differently once more turns follow")
        # The same content ends here in both texts, so what follows it must be alike.
        start = self._after_alike(before[last.position :], places[here[0]].position)
        following = places[here[0] + 1 :]
        if start is None or any(
            place.position < start and place.message != turn for place in following
        ):
            raise _moved(f"begins turn {turn + 1} otherwise than its generation prompt does")
        return start

    def _rest_of_header(self, turn: int, before: str, start: int) -> int:
        """Characters of a header that the generation prompt left out, usually none.

        Some templates have no generation prompt at all, or none in some places. What follows is
        the answer then only if there is no header.
        """
        prompt = self._shape.generation_prompt
        if self._shape.is_headerless or (prompt and before.endswith(prompt)):
            return 0
        content = (self._messages[turn]["content"] or "").strip()
        if content and self._text.startswith(content, _skip_blanks(self._text, start)):
            return 0
        if self._text.startswith(prompt, start):
            return len(prompt)
        if before != self._render(self._messages[:turn], False):
            return 0
        raise _moved(f"has no generation prompt before turn {turn + 1}")

    @cached_property
    def marks(self) -> tuple[ContentMarks, list[Mark]]:
        """Marks that change nothing but themselves, and where they stand in the text."""
        for has_blanks, has_answers in product((True, False), repeat=2):
            content_marks = ContentMarks(self._text, has_blanks=has_blanks, has_answers=has_answers)
            try:
                marked = self._render(content_marks.mark(self._messages), False)
            except RejectError:  # a template may look into contents
                continue
            plain, places = content_marks.take_out(marked)
            if plain == self._text:
                return content_marks, places
        raise _moved("moves text and changes with every mark that could show where")


class _Ends:
    """Finds where answers end."""

    def __init__(
        self,
        text: str,
        messages: Sequence[Message],
        render: Render,
        shape: TurnShape,
        special_tokens: tuple[str, ...],
        starts: _Starts,
    ) -> None:
        self._text = text
        self._messages = messages
        self._render = render
        self._shape = shape
        self._special_tokens = special_tokens
        self._starts = starts

    def find(self, turn: int, start: int) -> int:
        message = self._messages[turn]
        content = message["content"] or ""
        # A special token ends the turn, so nothing can stand between the content and its end. Calls
        # follow the content, and some templates write them under a header of their own.
        directly = () if message.get("tool_calls") else (content, content.strip())
        for written in directly:
            if self._text.startswith(written, start):
                for ending in self._shape.endings:
                    if self._text.startswith(ending, start + len(written)):
                        return start + len(written) + len(ending)
        if turn == len(self._messages) - 1:
            return self._last()
        end = None if message.get("tool_calls") else self._by_mark(turn, start)
        if end is None:
            end = self._by_closed_text(turn, start)
        if end is None:
            raise _moved(f"does not show where turn {turn + 1} ends")
        return end

    def _last(self) -> int:
        shape = self._shape
        if self._text.endswith(shape.closing):
            return len(self._text) - len(shape.closing) + len(shape.closing_answer)
        return len(self._trimmed(self._text))

    def _by_mark(self, turn: int, start: int) -> int | None:
        """Where the content ends and nothing but the end of the turn follows."""
        try:
            _, places = self._starts.marks
        except RejectError:
            return None
        ends = [place.position for place in places if place.message == turn]
        if len(ends) != 1 or ends[0] < start:
            return None
        content = self._messages[turn]["content"]
        blanks = content[len(content.rstrip()) :]
        after = ends
        if self._text.startswith(blanks, ends[0]) and blanks:
            # They are the content's or the template's, which only a special token can tell.
            if not self._shape.endings:
                return None
            after = [ends[0] + len(blanks), *ends]
        for end in after:
            for ending in self._shape.endings or (self._shape.closing_answer,):
                if self._text.startswith(ending, end):
                    return end + len(ending)
        return None

    def _by_closed_text(self, turn: int, start: int) -> int | None:
        """Where the messages up to this turn, rendered alone, end with all of the answer."""
        closed = self._trimmed(self._render(self._messages[: turn + 1], False))
        if len(closed) >= start and self._text.startswith(closed):
            return len(closed)
        # They may begin otherwise; the answer is then where the whole of it ends them too.
        token = next((token for token in self._special_tokens if closed.endswith(token)), None)
        if token is None:
            return None
        ends, end = [], start
        for _ in range(_MOST_PLACES):
            at = self._text.find(token, end)
            if at < 0:
                break
            end = at + len(token)
            if closed.endswith(self._text[start:end]):
                ends.append(end)
        # An answer may hold its own end, and turns may repeat themselves.
        return ends[0] if len(ends) == 1 else None

    def _trimmed(self, text: str) -> str:
        """White space after a special token separates turns; any other belongs to the answer."""
        trimmed = text.rstrip()
        return trimmed if trimmed.endswith(self._special_tokens) else text


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def _skip_blanks(text: str, start: int) -> int:
    blanks = _BLANKS.match(text, start)
    return blanks.end() if blanks else start


def _assistant_first() -> RejectError:
    return RejectError(
        "assistant-first",
        "the assistant speaks first and the chat template has no generation block, so where its "
        "answer starts is unknown",
    )


def _moved(how: str) -> RejectError:
    return RejectError("template-moves-text", f"the chat template {how}")
