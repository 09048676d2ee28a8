"""What a chat template leaves out of its text, without a word.

Templates for plain conversations ignore tool calls, tools and roles that they do not know. A
prompt without them is another conversation than the row's, and its answer may be an empty one.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.prompts.chat_template import Message, Span
from statetap_producer.prompts.content_marks import ContentMarks
from statetap_producer.prompts.template_messages import REASONING_FIELDS
from statetap_producer.prompts.turn_shape import Render
from statetap_producer.reading.turns import ASSISTANT

#: Templates drop a thought within a content, and rightly: earlier ones are not shown again.
_THOUGHT_END: Final = "</think>"


def refuse_dropped_tools(
    text: str, tools: Sequence[dict[str, Any]], render_without: Callable[[], str]
) -> None:
    """Holds the text of a conversation against the tools that it was rendered with.

    Args:
        text: the rendered conversation.
        tools: at least one.
        render_without: renders it without them.

    Raises:
        RejectError: kind ``template-drops-text``.
    """
    # Most templates write JSON, which proves it without another rendering.
    written = json.dumps(tools[0].get("function", tools[0]), ensure_ascii=False)
    if written not in text and render_without() == text:
        raise _dropped("the tools")


def refuse_dropped_text(
    text: str,
    messages: Sequence[Message],
    render: Render,
    answers: Sequence[Span] | None,
    *,
    is_cut: bool = False,
) -> None:
    """Looks for the content and the calls of every message.

    A content is looked for without the white space round it, and as JSON, between the answers
    beside it, an answer's own in the answer. Where the template moves or rewrites it, a mark at its
    end shows whether it is written.

    Args:
        text: ``render(messages, False)``.
        messages: the whole conversation.
        render: the chat template.
        answers: where the assistant's turns stand, in order; None where it is not known of each.
        is_cut: whether these are the first answers alone; what follows them is not looked for.

    Raises:
        RejectError: kind ``template-drops-text``.
    """
    told, missing = [], []
    position = 0
    for turn, (first, end) in enumerate(_stretches(text, messages, answers, is_cut=is_cut)):
        message = messages[turn]
        start = max(first, position)
        if message.get("tool_calls"):
            _refuse_dropped_calls(text, (start, end), turn, message)
        content = _told(message)
        if not content:
            continue
        told.append(turn)
        found = _find(text, content, start, end)
        if found is None:
            missing.append(turn)
        else:
            position = found[1]
    if not missing:
        return
    shown = _shown(text, messages, render)
    # One that is missing may have been taken for another with the same words.
    for turn in told if shown else missing:
        if turn not in shown:
            raise _dropped(f"what turn {turn + 1}, of role {messages[turn]['role']!r}, says")


def _stretches(
    text: str, messages: Sequence[Message], answers: Sequence[Span] | None, *, is_cut: bool
) -> Iterator[Span]:
    """The characters in which each message has to stand."""
    if answers is None:
        yield from ((0, len(text)) for _ in messages)
        return
    number = before = 0
    for message in messages:
        if number == len(answers) and is_cut:
            return
        if message["role"] == ASSISTANT:
            yield answers[number]
            before = answers[number][1]
            number += 1
        else:
            yield before, answers[number][0] if number < len(answers) else len(text)


def _told(message: Message) -> str:
    """The part of a content that no template may leave out."""
    content: str = message["content"] or ""
    if message["role"] == ASSISTANT and _THOUGHT_END in content:
        content = content.rpartition(_THOUGHT_END)[2]
    return content.strip()


def _find(text: str, content: str, start: int, end: int) -> Span | None:
    at = text.find(content, start, end)
    if at < 0:
        content = json.dumps(content, ensure_ascii=False)[1:-1]
        at = text.find(content, start, end)
    return None if at < 0 else (at, at + len(content))


def _refuse_dropped_calls(text: str, stretch: Span, turn: int, message: Message) -> None:
    """Looks for the names of the called functions, beside what the assistant says of them."""
    start, end = stretch
    said = {message.get(field) or "" for field in ("content", *REASONING_FIELDS)}
    others = sorted(
        found
        for part in {*said, _told(message)}
        if part.strip() and (found := _find(text, part.strip(), start, end))
    )
    for call in message["tool_calls"]:
        name = call["function"]["name"]
        at = text.find(name, start, end)
        for first, last in others:
            if first <= at < last:
                at = text.find(name, last, end)
        if at < 0:
            raise _dropped(f"the call of {name!r:.60} in turn {turn + 1}")
        start = at + len(name)


def _shown(text: str, messages: Sequence[Message], render: Render) -> set[int]:
    """Messages whose contents a template writes, wherever and however."""
    marks = ContentMarks(text, has_blanks=False, has_answers=True)
    try:
        marked = render(marks.mark(messages), False)
    except RejectError:  # a template may look into contents
        return set()
    return {mark.message for mark in marks.take_out(marked)[1]}


def _dropped(what: str) -> RejectError:
    return RejectError(
        "template-drops-text",
        f"the chat template leaves out {what}; take it out of the row, or use a template that "
        "writes it",
    )
