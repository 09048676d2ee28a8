"""Where the assistant speaks: in the rendered text first, then in its tokens.

A template with a ``{% generation %}`` block says so itself. For all others the conversation is
rendered up to an answer, with the generation prompt, and up to its end; where both are
beginnings of the whole text, what lies between them is the answer. Where they are not, the
template says different things at different times (it drops earlier reasoning, for instance),
and the conversation is rejected, because a guess would be a silently wrong mask.
"""

from collections.abc import Callable, Collection, Sequence

from statetap_contract import RejectError

from statetap_producer.conversation import ASSISTANT, Message

#: Half-open range, of characters or of tokens.
Span = tuple[int, int]

#: Renders messages, with the generation prompt or without.
Render = Callable[[Sequence[Message], bool], str]


def answer_spans(
    messages: Sequence[Message], render: Render, special_tokens: Collection[str]
) -> list[Span]:
    """Character spans of the assistant's turns in ``render(messages, False)``.

    A span holds what the model has to produce: the content and the end-of-turn token, not the
    white space that the template puts after it.

    Args:
        messages: the whole conversation.
        render: the chat template.
        special_tokens: texts of the tokenizer's special tokens.

    Raises:
        RejectError: kind ``assistant-first`` or ``template-moves-text``.
    """
    text = render(messages, False)
    spans = []
    for turn, message in enumerate(messages):
        if message.role != ASSISTANT:
            continue
        if turn == 0:
            raise RejectError(
                "assistant-first",
                "the assistant speaks first and the chat template has no generation block, so "
                "where its answer starts is unknown",
            )
        before = render(messages[:turn], True)
        through = render(messages[: turn + 1], False)
        if not text.startswith(through):
            raise RejectError(
                "template-moves-text",
                f"the chat template renders turn {turn + 1} differently once more turns follow",
            )
        if not through.startswith(before):
            raise RejectError(
                "template-moves-text",
                f"the chat template's generation prompt is not how turn {turn + 1} begins",
            )
        answer = through[len(before) :]
        if before == render(messages[:turn], False) and not _begins_with(answer, message):
            raise RejectError(
                "template-moves-text",
                "the chat template has no generation prompt, so where the answer of turn "
                f"{turn + 1} starts is unknown",
            )
        spans.append((len(before), len(before) + _answer_length(answer, special_tokens)))
    return spans


def _begins_with(answer: str, message: Message) -> bool:
    return answer.lstrip().startswith(message.content.strip())


def _answer_length(answer: str, special_tokens: Collection[str]) -> int:
    """White space after a special token separates turns; any other belongs to the answer."""
    trimmed = answer.rstrip()
    return len(trimmed) if trimmed.endswith(tuple(special_tokens)) else len(answer)


def token_spans(offsets: Sequence[Span], char_spans: Sequence[Span]) -> tuple[Span, ...]:
    """Token spans that cover character spans; spans that touch become one.

    A token that reaches over a span's edge is covered: the model has to produce that token to
    produce the span's text.

    Args:
        offsets: character range of each token, in order.
        char_spans: ascending, not overlapping; empty ones are ignored.
    """
    wanted = [span for span in char_spans if span[0] < span[1]]
    covered: list[Span] = []
    current = 0
    for token, (start, end) in enumerate(offsets):
        while current < len(wanted) and wanted[current][1] <= start:
            current += 1
        # A token may stand for no character of its own; it goes with the one it stands before.
        if current == len(wanted) or max(end, start + 1) <= wanted[current][0]:
            continue
        if covered and covered[-1][1] == token:
            covered[-1] = (covered[-1][0], token + 1)
        else:
            covered.append((token, token + 1))
    return tuple(covered)
