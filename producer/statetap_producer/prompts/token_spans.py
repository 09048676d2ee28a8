"""From spans of characters to spans of tokens."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from statetap_producer.prompts.chat_template import Span


def token_spans(
    num_tokens: int,
    chars_of: Callable[[int], Span],
    is_added: Callable[[int], bool],
    char_spans: Sequence[Span],
) -> tuple[Span, ...]:
    """Token spans that cover character spans; spans that touch become one.

    A token that reaches over a span's edge is covered: the model has to produce that token to
    produce the span's text. An added token with the white space after it, which some tokenizers
    make one token, is not: it stands for what precedes the span.

    Args:
        num_tokens: tokens of the text.
        chars_of: character range of a token; ascending, because each token is made of text that
            follows the one before it. Few are asked for: all of them take as long as a fifth of
            the tokenising.
        is_added: whether a token is one of those that were added to the vocabulary.
        char_spans: ascending, not overlapping; empty ones are ignored.
    """

    # A token may stand for no character of its own; it goes with the one it stands before.
    def reach(token: int) -> int:
        start, end = chars_of(token)
        return max(end, start + 1)

    tokens = range(num_tokens)
    covered: list[Span] = []
    first = 0
    for start, end in char_spans:
        if start >= end:
            continue
        first = bisect_right(tokens, start, lo=first, key=reach)
        stop = bisect_left(tokens, end, lo=first, key=lambda token: chars_of(token)[0])
        while first < stop and chars_of(first)[0] < start and is_added(first):
            first += 1
        if first >= stop:
            continue
        if covered and covered[-1][1] >= first:
            covered[-1] = (covered[-1][0], stop)
        else:
            covered.append((first, stop))
    return tuple(covered)
