"""Where the assistant speaks, in text and in tokens."""

from collections.abc import Sequence

import pytest
from statetap_contract import RejectError
from statetap_producer.conversation import Message
from statetap_producer.loss_mask import answer_spans, token_spans

ASK = Message("user", "Q")
ANSWER = Message("assistant", "A")
TURNS = (ASK, ANSWER, ASK, ANSWER)


def chatml(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - loss_mask.Render
    text = "".join(f"<s>{message.role}\n{message.content}<e>\n" for message in messages)
    return text + ("<s>assistant\n" if is_open else "")


def answers_in(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


def test_an_answer_is_its_content_and_its_end_token() -> None:
    """Neither the header before an answer nor the white space after its end belongs to it."""
    spans = answer_spans(TURNS, chatml, {"<e>"})
    assert answers_in(chatml(TURNS, False), spans) == ["A<e>", "A<e>"]


def test_white_space_that_ends_a_turn_belongs_to_it() -> None:
    """Without an end token, the line feed is what the model has to produce to end its turn."""

    def plain(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = "".join(f"{message.role}: {message.content}\n" for message in messages)
        return text + ("assistant: " if is_open else "")

    spans = answer_spans(TURNS, plain, {"<e>"})
    assert answers_in(plain(TURNS, False), spans) == ["A\n", "A\n"]


def test_a_template_may_have_no_header_at_all() -> None:
    """Where the answer simply follows the question, no generation prompt is needed."""

    def bare(messages: Sequence[Message], is_open: bool) -> str:  # noqa: ARG001, FBT001 - Render
        form = {"user": "[I] {} [/I]", "assistant": " {}<e>"}
        return "".join(form[message.role].format(message.content) for message in messages)

    assert answers_in(bare(TURNS, False), answer_spans(TURNS, bare, {"<e>"})) == [" A<e>", " A<e>"]


def test_a_template_that_ignores_the_generation_prompt_is_refused() -> None:
    """A header that cannot be told from the answer would be in the loss, silently."""

    def closed(messages: Sequence[Message], is_open: bool) -> str:  # noqa: ARG001, FBT001 - Render
        return chatml(messages, False)

    with pytest.raises(RejectError, match="no generation prompt") as caught:
        answer_spans(TURNS, closed, {"<e>"})
    assert caught.value.kind == "template-moves-text"


def test_a_template_that_moves_text_is_refused() -> None:
    """A template that shows a turn otherwise once others follow gives no mask at all."""

    def thinking(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        last = len(messages) - 1
        return chatml(
            [
                Message(m.role, "<think>" + m.content if turn == last else m.content)
                for turn, m in enumerate(messages)
            ],
            is_open,
        )

    with pytest.raises(RejectError, match="renders turn 2 differently") as caught:
        answer_spans(TURNS, thinking, {"<e>"})
    assert caught.value.kind == "template-moves-text"


def test_a_generation_prompt_that_no_answer_begins_with_is_refused() -> None:
    """A template that opens a thought which answers do not have says not where they start."""

    def opening(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        return chatml(messages, is_open) + ("<think>" if is_open else "")

    with pytest.raises(RejectError, match="not how turn 2 begins") as caught:
        answer_spans(TURNS, opening, {"<e>"})
    assert caught.value.kind == "template-moves-text"


def test_an_assistant_that_speaks_first_is_refused() -> None:
    """Nothing precedes the first turn that could show where its text starts."""
    with pytest.raises(RejectError) as caught:
        answer_spans((ANSWER, ASK), chatml, {"<e>"})
    assert caught.value.kind == "assistant-first"


@pytest.mark.parametrize(
    ("char_spans", "expected"),
    [
        ([], ()),
        ([(3, 3)], ()),
        ([(0, 3)], ((0, 1),)),
        ([(3, 6)], ((1, 2),)),
        ([(3, 7)], ((1, 5),)),  # the emoji's three tokens share one character
        ([(4, 6)], ((1, 2),)),  # a token that reaches over the edge counts
        ([(2, 4)], ((0, 2),)),
        ([(0, 3), (3, 6)], ((0, 2),)),  # touching spans become one
        ([(0, 3), (7, 9)], ((0, 1), (5, 6))),
        ([(0, 4), (5, 6)], ((0, 2),)),  # both inside one token
    ],
)
def test_tokens_cover_characters(
    char_spans: list[tuple[int, int]], expected: tuple[tuple[int, int], ...]
) -> None:
    """Exactly the tokens that hold a character of a span are covered."""
    offsets = [(0, 3), (3, 6), (6, 7), (6, 7), (6, 7), (7, 9)]
    assert token_spans(offsets, char_spans) == expected


def test_a_token_without_characters_goes_with_what_follows() -> None:
    """A token of zero width is covered when the character it stands before is."""
    assert token_spans([(0, 2), (2, 2), (2, 4)], [(2, 4)]) == ((1, 3),)
    assert token_spans([(0, 2), (2, 2), (2, 4)], [(0, 2)]) == ((0, 1),)
