"""Ids and masks of whole conversations, against what a person writes down."""

from pathlib import Path

import pytest
from statetap_contract import MissingError, ModelFolder, RejectError, StatetapError
from statetap_producer.chat_tokenizer import ChatTokenizer
from statetap_producer.conversation import Conversation, Message
from transformers import AutoTokenizer

from .conftest import CHATML, CHATML_WITH_BLOCK, DEFAULT_SYSTEM, ModelMaker, byte_level_bpe


def conversation(*turns: tuple[str, str]) -> Conversation:
    return Conversation(tuple(Message(*turn) for turn in turns), 1, None)


def user(text: str) -> tuple[str, int]:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", 0


MANY_TURNS = (
    conversation(
        ("system", "Be brief."),
        ("user", "What is the capital?"),
        ("assistant", "Paris, of course é🎉"),
        ("user", "Hello"),
        ("assistant", "  I am fine,\n\nthank you. "),
    ),
    [
        ("<|im_start|>system\nBe brief.<|im_end|>\n", 0),
        user("What is the capital?"),
        ("Paris, of course é🎉<|im_end|>", 1),
        ("\n", 0),
        user("Hello"),
        ("  I am fine,\n\nthank you. <|im_end|>", 1),
        ("\n", 0),
    ],
)

DEFAULTED = (
    conversation(("user", "Hello"), ("assistant", "Hello there."), ("user", "Thank you.")),
    [
        (DEFAULT_SYSTEM, 0),
        user("Hello"),
        ("Hello there.<|im_end|>", 1),
        ("\n<|im_start|>user\nThank you.<|im_end|>\n", 0),
    ],
)

EMPTY_ANSWER = (
    conversation(("user", "Hello"), ("assistant", "")),
    [(DEFAULT_SYSTEM, 0), user("Hello"), ("<|im_end|>", 1), ("\n", 0)],
)


def by_hand(parts: list[tuple[str, int]]) -> tuple[list[int], bytes]:
    """Ids and mask of texts that no token reaches across."""
    bare = byte_level_bpe()
    bare.no_truncation()
    bare.no_padding()
    ids, mask = [], b""
    for text, flag in parts:
        new = bare.encode(text, add_special_tokens=False).ids
        ids += new
        mask += bytes([flag]) * len(new)
    return ids, mask


@pytest.fixture(scope="module", params=["without a generation block", "with one"])
def tokenizer(request: pytest.FixtureRequest, make_model: ModelMaker) -> ChatTokenizer:
    template = CHATML if request.param.startswith("without") else CHATML_WITH_BLOCK
    folder = make_model(request.param.replace(" ", "-"), template)
    return ChatTokenizer(ModelFolder.read(folder), 200)


@pytest.mark.parametrize(("asked", "parts"), [MANY_TURNS, DEFAULTED, EMPTY_ANSWER])
def test_every_token_is_masked_as_by_hand(
    tokenizer: ChatTokenizer, asked: Conversation, parts: list[tuple[str, int]]
) -> None:
    """With or without a generation block, ids and mask are those a person writes down."""
    prompt = tokenizer.prompt(asked)
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)


def test_ids_are_those_of_the_models_own_template_call(model: Path) -> None:
    """What is planned is what transformers itself makes of the conversation."""
    own = AutoTokenizer.from_pretrained(model).apply_chat_template(
        [{"role": m.role, "content": m.content} for m in MANY_TURNS[0].messages],
        return_dict=True,
    )
    planned = ChatTokenizer(ModelFolder.read(model), 200).prompt(MANY_TURNS[0])
    assert list(planned.token_ids) == own["input_ids"]


def test_a_blank_before_an_answer_is_not_its_own(make_model: ModelMaker) -> None:
    """A blank that ends the header is the header's, whatever a tokenizer says of its place."""
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    tokenizer = ChatTokenizer(ModelFolder.read(make_model("blank", template)), 200)
    prompt = tokenizer.prompt(conversation(("user", "Hello"), ("assistant", "\nHello")))
    parts = [("user: Hello<|im_end|>assistant:", 0), (" ", 0), ("\n", 1), ("Hello<|im_end|>", 1)]
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (conversation(("user", "Hello")), "no-assistant-tokens"),
        (conversation(("user", "Hello"), ("assistant", "very " * 200)), "too-long"),
    ],
)
def test_what_cannot_be_trained_on_is_rejected(
    tokenizer: ChatTokenizer, asked: Conversation, kind: str
) -> None:
    """A conversation without an answer, or one that is too long, is left out, never cut."""
    with pytest.raises(RejectError) as caught:
        tokenizer.prompt(asked)
    assert caught.value.kind == kind


def test_the_longest_prompt_is_accepted(model: Path) -> None:
    """A prompt of exactly the most tokens passes, one of a token more does not."""
    folder = ModelFolder.read(model)
    num_tokens = ChatTokenizer(folder, 200).prompt(DEFAULTED[0]).num_tokens
    assert ChatTokenizer(folder, num_tokens).prompt(DEFAULTED[0]).num_tokens == num_tokens
    with pytest.raises(RejectError, match=f"has {num_tokens} tokens, more than {num_tokens - 1}"):
        ChatTokenizer(folder, num_tokens - 1).prompt(DEFAULTED[0])


def test_ids_beyond_the_vocabulary_are_rejected(make_model: ModelMaker) -> None:
    """A tokenizer with more ids than the model has rows is found out."""
    folder = make_model("small-vocabulary", vocab_size=100)
    with pytest.raises(RejectError, match="vocabulary of 100") as caught:
        ChatTokenizer(ModelFolder.read(folder), 200).prompt(DEFAULTED[0])
    assert caught.value.kind == "token-outside-vocabulary"


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('roles must alternate') }}", "{{ messages[9].content + 1 }}", "{% if %}"],
)
def test_a_template_that_refuses_rejects_the_conversation(
    make_model: ModelMaker, template: str
) -> None:
    """Whatever a template raises is its refusal of this one conversation."""
    folder = make_model("refusing", template)
    with pytest.raises(RejectError) as caught:
        ChatTokenizer(ModelFolder.read(folder), 200).prompt(DEFAULTED[0])
    assert caught.value.kind == "template-refused"


def test_a_template_with_todays_date_gives_the_same_ids_every_day(
    make_model: ModelMaker,
) -> None:
    """The clock that a template may read stands still."""
    dated = make_model("dated", "{{ strftime_now('%d %b %Y') }}\\n" + CHATML)
    fixed = make_model("fixed", "26 Jul 2024\\n" + CHATML)
    prompts = [
        ChatTokenizer(ModelFolder.read(folder), 200).prompt(DEFAULTED[0])
        for folder in (dated, fixed)
    ]
    assert prompts[0] == prompts[1]


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def with_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("damage", [without_tokenizer, with_damaged_tokenizer])
def test_a_folder_without_a_usable_tokenizer_is_named(make_model: ModelMaker, damage) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """A tokenizer that is absent or damaged is a sentence, not a traceback."""
    folder = make_model(damage.__name__)
    damage(folder)
    with pytest.raises(MissingError, match=str(folder)) as caught:
        ChatTokenizer(ModelFolder.read(folder), 200)
    assert caught.value.kind == "tokenizer-missing"


def test_a_tokenizer_without_a_template_is_named(make_model: ModelMaker) -> None:
    """Without a chat template there is nothing to tokenise by."""
    folder = make_model("without-template", None)
    with pytest.raises(StatetapError, match="has no chat template") as caught:
        ChatTokenizer(ModelFolder.read(folder), 200)
    assert (caught.value.kind, caught.value.exit_code) == ("template-missing", 2)


def test_digests_follow_tokenizer_and_template(make_model: ModelMaker) -> None:
    """Same files, same digests; another template, another template digest."""
    plain, same, other = (
        ChatTokenizer(ModelFolder.read(make_model(name, template)), 200)
        for name, template in (("a", CHATML), ("b", CHATML), ("c", CHATML_WITH_BLOCK))
    )
    assert (plain.digest, plain.template_digest) == (same.digest, same.template_digest)
    assert plain.template_digest != other.template_digest
