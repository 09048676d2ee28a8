"""Where answers start and end, on templates written as functions."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from statetap_contract import RejectError
from statetap_producer.prompts.chat_template import Message, Span
from statetap_producer.prompts.loss_mask import answer_spans
from statetap_producer.prompts.token_spans import token_spans
from statetap_producer.prompts.turn_shape import TurnShape, learn_turn_shape

from .chat_families import answer, system, user

Template = Callable[[Sequence[Message], bool], str]

TURNS = (user("Q"), answer("A"), user("Q"), answer("A"))
CALLED = (user("Q"), answer(None, tool_calls=[{}]), user("Q"))
END = ("<e>",)


def chatml(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
    text = "".join(f"<{m['role']}>{m['content']}<e>\n" for m in messages)
    return text + ("<assistant>" if is_open else "")


def closed(messages: Sequence[Message], is_open: bool) -> str:  # noqa: ARG001, FBT001 - Render
    return chatml(messages, False)


def moving(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
    """Like Mistral Nemo's: the system message stands in the last question."""
    last = max((at for at, m in enumerate(messages) if m["role"] == "user"), default=-1)
    texts = []
    for at, message in enumerate(messages[1:], start=1):
        moved = messages[0]["content"] + "\n\n" if at == last else ""
        texts.append({**message, "content": moved + message["content"]})
    return chatml(texts, is_open)


def calling(messages: Sequence[Message], is_open: bool, call: str) -> str:  # noqa: FBT001 - Render
    return chatml([{**m, "content": m["content"] or call} for m in messages], is_open)


def answers_in(
    template: Template, messages: Sequence[Message], special: Sequence[str] = END
) -> list[str]:
    text = template(messages, False)
    shape = learn_turn_shape(template, special)
    spans = answer_spans(text, messages, template, shape, special, stop=len(text))
    return [text[start:end] for start, end in spans]


def refusal(
    template: Template, messages: Sequence[Message], special: Sequence[str] = END
) -> RejectError:
    with pytest.raises(RejectError) as caught:
        answers_in(template, messages, special)
    return caught.value


def test_what_is_learned_of_a_template() -> None:
    """Header, end and what follows it are those that the template writes."""
    assert learn_turn_shape(chatml, END) == TurnShape(
        generation_prompt="<assistant>",
        opened_thought="",
        is_headerless=False,
        endings=("<e>",),
        closing="<e>\n",
        closing_answer="<e>",
    )


def test_an_answer_is_its_content_and_its_end_token() -> None:
    """Neither the header before an answer nor the white space after its end belongs to it."""
    assert answers_in(chatml, TURNS) == ["A<e>", "A<e>"]


def test_several_tokens_may_end_a_turn() -> None:
    """All of them are the answer's, a header and a token that ends the text are not."""

    def ended(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = "".join(f"<{m['role']}><r>{m['content']}</r><e>" for m in messages)
        return text + ("<assistant>" if is_open else "<end>")

    special = ("<user>", "<assistant>", "<r>", "</r>", "<e>", "<end>")
    assert learn_turn_shape(ended, special).endings == ("</r><e>",)
    assert answers_in(ended, TURNS, special) == ["<r>A</r><e>"] * 2
    assert answers_in(ended, TURNS[:3], special) == ["<r>A</r><e>"]


def test_of_end_tokens_that_start_alike_the_longest_is_taken() -> None:
    """What the tokenizer makes one token is not cut in two."""
    special = ("<e>\n", "<e>", "")
    assert learn_turn_shape(chatml, special).endings == ("<e>\n",)


def test_answers_behind_what_is_planned_are_not_looked_for() -> None:
    """The work is bounded by what is planned; the answer in which it stops is still found."""
    text = chatml(TURNS, False)
    rendered = []

    def counted(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        rendered.append(len(messages))
        return chatml(messages, is_open)

    shape = learn_turn_shape(chatml, END)
    many = TURNS * 100
    long_text = chatml(many, False)
    first = text.index("A<e>")
    for stop, num_found in ((first, 0), (first + 1, 1), (len(text), 2)):
        spans = answer_spans(long_text, many, counted, shape, END, stop=stop)
        assert len(spans) == num_found
    assert max(rendered) == 5


def test_a_call_under_a_header_of_its_own_is_the_turn_s() -> None:
    """The turn ends with its calls, whatever ends the text before them."""

    def split(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        texts: list[Message] = []
        for m in messages:
            texts += [m, answer("call")] if m.get("tool_calls") else [m]
        return chatml(texts, is_open)

    called = (user("Q"), answer("A", tool_calls=[{}]), user("Q"), answer("A"))
    expected = "A<e>\n<assistant>call<e>"
    assert answers_in(split, called) == [expected, "A<e>"]
    assert answers_in(split, called[:2]) == [expected]


def test_white_space_before_a_header_may_differ_once_turns_follow() -> None:
    """The content before an answer and its generation prompt are there: that is proof enough."""

    def airy(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        end = "\n<e> " if len(messages) > 2 else "<e>\n"
        first = f"<user>{messages[0]['content']}{end}"
        return first + chatml(messages[1:], is_open)

    assert answers_in(airy, (user("Q"), answer("\nA"), user("Q"))) == ["\nA<e>"]
    # The first of these answers has nothing that a mark could follow.
    assert answers_in(airy, (user("Q"), answer(""), answer("A"))) == ["<e>", "A<e>"]


def test_what_differs_by_more_than_white_space_is_refused() -> None:
    """Other text between a content and a header is not taken for the same."""

    def moody(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        end = "<f>\n" if len(messages) > 2 else "<e>\n"
        first = f"<user>{messages[0]['content']}{end}"
        return first + chatml(messages[1:], is_open)

    error = refusal(moody, (user("Q"), answer("A"), user("Q")))
    assert (error.kind, "begins turn 2" in error.message) == ("template-moves-text", True)


def test_white_space_that_ends_a_turn_belongs_to_it() -> None:
    """Without an end token, the line feed is what the model has to produce to end its turn."""

    def plain(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        return text + ("assistant: " if is_open else "")

    assert answers_in(plain, TURNS) == ["A\n", "A\n"]
    assert answers_in(plain, (user("Q"), answer("A \n"), user("Q"))) == ["A \n\n"]


def test_a_template_may_have_no_header_at_all() -> None:
    """Where the answer simply follows the question, no generation prompt is needed."""

    def bare(messages: Sequence[Message], is_open: bool) -> str:  # noqa: ARG001, FBT001 - Render
        form = {"user": "[I] {} [/I]", "assistant": " {}<e>"}
        return "".join(form[m["role"]].format(m["content"]) for m in messages)

    assert answers_in(bare, TURNS) == [" A<e>", " A<e>"]


def test_a_template_that_ignores_the_generation_prompt_is_refused() -> None:
    """A header that cannot be told from the answer would be in the loss, silently."""
    error = refusal(closed, TURNS)
    assert (error.kind, "has no generation prompt" in error.message) == (
        "template-moves-text",
        True,
    )


def test_a_generation_prompt_that_is_missing_in_places_is_made_up_for() -> None:
    """Where the prompt is missing, a header that is the known one is still no answer."""

    def forgetful(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        return chatml(messages, is_open and len(messages) < 3)

    assert answers_in(forgetful, TURNS) == ["A<e>", "A<e>"]


def test_a_header_that_no_generation_prompt_shows_is_refused() -> None:
    """Where prompt and header are unknown, so is where the answer starts."""

    def forgetful(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = chatml(messages, is_open and len(messages) < 3)
        head, answer_header, tail = text.rpartition("<assistant>")
        return head + ("<other>" if len(messages) > 2 else answer_header) + tail

    error = refusal(forgetful, TURNS)
    assert (error.kind, "before turn 4" in error.message) == ("template-moves-text", True)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (answer("A"), "A<e>"),
        (answer("<think>B</think>\nA "), "A <e>"),
        (answer("\ue000\U000f0000A"), "\ue000\U000f0000A<e>"),
        (answer(""), "<e>"),
    ],
)
def test_text_that_moves_is_followed(first: dict[str, Any], expected: str) -> None:
    """A system message that stands elsewhere in the whole text hides no answer."""

    def thoughtless(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        return moving(
            [{**m, "content": m["content"].split("</think>\n")[-1]} for m in messages], is_open
        )

    asked = (system("Q"), user("Q"), first, user("Q A"), answer("A"))
    assert answers_in(lambda m, is_open: thoughtless(_with_system(m), is_open), asked) == [
        expected,
        "A<e>",
    ]


def _with_system(messages: Sequence[Message]) -> Sequence[Message]:
    return messages if messages and messages[0]["role"] == "system" else (system(""), *messages)


def test_text_that_moves_is_refused_when_it_holds_every_mark() -> None:
    """Without a character to mark contents with, nothing is proven."""
    every = "\ue000\U000f0000\U00100000"
    asked = (system("S"), user("Q"), answer("A"), user(every), answer("A"))
    error = refusal(lambda m, is_open: moving(_with_system(m), is_open), asked)
    assert (error.kind, "every character" in error.message) == ("template-moves-text", True)


def test_contents_that_cannot_be_marked_are_refused() -> None:
    """A template that changes with every mark moves its text unseen."""

    def counting(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = moving(_with_system(messages), is_open)
        return f"{sum(len(m['content']) for m in messages)} {text}"

    asked = (system("S"), user("Q"), answer("A"), user("Q"), answer("A"))
    error = refusal(counting, asked)
    assert (error.kind, "every mark" in error.message) == ("template-moves-text", True)


def test_answers_that_cannot_be_marked_need_not_be() -> None:
    """A template that looks into answers is still followed by the other contents."""

    def looking(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        seen = [
            {**m, "content": "B"} if m["role"] == "assistant" and m["content"] != "A" else m
            for m in messages
        ]
        probed = any("\ue001" in m["content"] for m in messages)
        return moving(_with_system(messages if probed else seen), is_open)

    asked = (system("S"), user("Q"), answer("A"), user("Q"), answer("A"))
    assert answers_in(looking, asked) == ["A<e>", "A<e>"]


def test_a_last_question_shown_twice_is_refused() -> None:
    """A content that stands in two places does not show which of them is meant."""

    def repeating(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        first = messages[0]["content"] if len(messages) > 2 else ""
        return first + chatml(messages, is_open)

    error = refusal(repeating, TURNS)
    assert (error.kind, "what precedes turn 2" in error.message) == ("template-moves-text", True)


def test_an_earlier_thought_is_no_reason_to_refuse() -> None:
    """A thought that only the last turn shows is in its loss; earlier turns do without."""

    def thinking(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        last = len(messages) - 1
        return chatml(
            [
                {**m, "content": "<think>" + m["content"]}
                if turn == last and m["role"] == "assistant"
                else m
                for turn, m in enumerate(messages)
            ],
            is_open,
        )

    assert answers_in(thinking, TURNS) == ["A<e>", "<think>A<e>"]


def test_a_thought_that_only_the_generation_prompt_opens_is_no_answer() -> None:
    """Where text lacks the opened thought, the answer starts behind the header."""

    def opening(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        return chatml(messages, is_open) + ("<think>" if is_open else "")

    assert answers_in(opening, TURNS) == ["A<e>", "A<e>"]


def test_an_end_that_nothing_shows_is_refused() -> None:
    """Where an answer's end differs from all that is known, a guess would be wrong."""

    def moody(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        text = chatml(messages, is_open)
        return text.replace("A<e>\n", "A / ") if len(messages) > 2 else text

    error = refusal(moody, (user("Q"), answer("A"), user("Q")))
    assert (error.kind, "where turn 2 ends" in error.message) == ("template-moves-text", True)


def test_an_assistant_that_speaks_first_is_understood_where_the_template_is_plain() -> None:
    """Of nothing, the text for generating an answer may still be known."""
    assert answers_in(chatml, (answer("A"), user("Q"))) == ["A<e>"]


@pytest.mark.parametrize("fault", [RejectError("template-refused", "no messages"), None])
def test_an_assistant_that_speaks_first_is_refused_otherwise(fault: RejectError | None) -> None:
    """Nothing precedes the first turn that could show where its text starts."""

    def greeting(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        if not messages and fault:
            raise fault
        return ("<hello>" if messages else "") + chatml(messages, is_open)

    assert refusal(greeting, (answer("A"), user("Q"))).kind == "assistant-first"


def test_too_many_turns_are_refused_at_once() -> None:
    """A conversation that would take minutes is left out."""
    assert refusal(chatml, TURNS * 251).kind == "too-many-turns"


@pytest.mark.parametrize(
    ("call", "expected"), [("B", ["B<e>"]), ("B<e>B A", ["B<e>B A<e>"]), ("B<e>B", ["B<e>B<e>"])]
)
def test_a_call_ends_where_the_turns_up_to_it_end(call: str, expected: list[str]) -> None:
    """A call's text is not in the row, an end-of-turn token within it ends nothing."""
    assert answers_in(lambda m, is_open: calling(m, is_open, call), CALLED) == expected


@pytest.mark.parametrize(("call", "expected"), [("B", ["B<e>"]), ("B<e>B A", ["B<e>B A<e>"])])
def test_a_call_may_begin_otherwise_once_turns_follow(call: str, expected: list[str]) -> None:
    """A thought that is dropped from an earlier call hides not where the call ends."""

    def thinking(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        thought = "<think>" if len(messages) < 3 else ""
        return calling(messages, is_open, thought + call)

    assert answers_in(thinking, CALLED) == expected


def test_a_call_that_could_end_in_two_places_is_refused() -> None:
    """Where a call is its own end, and begins otherwise, one end is as good as the other."""

    def thinking(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        thought = "<think>" if len(messages) < 3 else ""
        return calling(messages, is_open, thought + "B<e>B")

    error = refusal(thinking, CALLED)
    assert (error.kind, "where turn 2 ends" in error.message) == ("template-moves-text", True)


def test_a_text_of_end_tokens_ends() -> None:
    """Looking for an end among very many tokens stops, with a refusal."""

    def growing(messages: Sequence[Message], is_open: bool) -> str:  # noqa: FBT001 - Render
        return calling(messages, is_open, "B" + "<e>" * 9999 + str(len(messages)))

    assert refusal(growing, CALLED).kind == "template-moves-text"


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
        ([(9, 12)], ()),
    ],
)
def test_tokens_cover_characters(char_spans: list[Span], expected: tuple[Span, ...]) -> None:
    """Exactly the tokens that hold a character of a span are covered."""
    offsets = [(0, 3), (3, 6), (6, 7), (6, 7), (6, 7), (7, 9)]
    covered = token_spans(len(offsets), offsets.__getitem__, lambda _: False, char_spans)
    assert covered == expected


def test_a_token_without_characters_goes_with_what_follows() -> None:
    """A token of zero width is covered when the character it stands before is."""
    offsets = [(0, 2), (2, 2), (2, 4)]
    covered = [
        token_spans(3, offsets.__getitem__, lambda _: False, [span]) for span in ((2, 4), (0, 2))
    ]
    assert covered == [((1, 3),), ((0, 1),)]


def test_an_added_token_does_not_reach_into_an_answer() -> None:
    """White space that a special token took along makes it no part of the answer behind it."""
    offsets = [(0, 5), (5, 9), (9, 12)]
    covered = token_spans(3, offsets.__getitem__, lambda token: token != 1, [(4, 10)])
    assert covered == ((1, 3),)
