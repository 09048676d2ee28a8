"""Prompts of whole batches, against what a person writes down."""

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statetap_contract import MissingError, ModelFolder, RejectError, StatetapError, UsageError
from statetap_producer.prompts.chat_template import ChatTemplate
from statetap_producer.prompts.chat_tokenizer import ChatTokenizer, TokenisedPrompt
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.prompts.token_spans import token_spans
from statetap_producer.reading.conversation import Conversation, PlainText, TokenIds
from tokenizers import Encoding, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from .chat_families import WEATHER, call
from .conftest import CHATML, CHATML_WITH_BLOCK, DEFAULT_SYSTEM, ModelMaker, byte_level_bpe


def conversation(*turns: tuple[str, str]) -> Conversation:
    return Conversation(tuple({"role": role, "content": text} for role, text in turns), None)


def chat_tokenizer(folder: Path, max_tokens: int = 200, **rules: bool) -> ChatTokenizer:
    return ChatTokenizer(ModelFolder.read(folder), PromptRules(max_tokens, **rules))


def planned(
    tokenizer: ChatTokenizer, content: Conversation | PlainText | TokenIds
) -> TokenisedPrompt:
    [result] = tokenizer.prompts([content])
    assert not isinstance(result, RejectError), result
    return result


def refusal(tokenizer: ChatTokenizer, content: Conversation | PlainText | TokenIds) -> RejectError:
    [result] = tokenizer.prompts([content])
    assert isinstance(result, RejectError)
    return result


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
    return chat_tokenizer(make_model(request.param.replace(" ", "-"), template))


@pytest.mark.parametrize(("asked", "parts"), [MANY_TURNS, DEFAULTED, EMPTY_ANSWER])
def test_every_token_is_masked_as_by_hand(
    tokenizer: ChatTokenizer, asked: Conversation, parts: list[tuple[str, int]]
) -> None:
    """With or without a generation block, ids and mask are those a person writes down."""
    prompt = planned(tokenizer, asked).prompt
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)


def test_each_content_of_a_batch_has_its_result_in_its_place(tokenizer: ChatTokenizer) -> None:
    """Conversations, text, ids and what is refused do not get in each other's way."""
    contents: list[Conversation | PlainText | TokenIds] = [
        conversation(("user", "Hello")),
        MANY_TURNS[0],
        TokenIds(array("i", [5, 6, 7]), ((1, 2),)),
        PlainText("Hello"),
        DEFAULTED[0],
        conversation(("user", "Hello"), ("assistant", "very " * 200)),
    ]
    results = tokenizer.prompts(contents)
    kinds = [result.kind if isinstance(result, RejectError) else "" for result in results]
    assert kinds == ["no-loss-tokens", "", "", "all-loss-tokens", "", "too-long"]
    assert results[1] == planned(tokenizer, MANY_TURNS[0])
    assert results[4] == planned(tokenizer, DEFAULTED[0])
    assert isinstance(results[2], TokenisedPrompt)
    assert list(results[2].prompt.token_ids) == [5, 6, 7]
    assert results[2].prompt.loss_spans == ((1, 2),)
    assert tokenizer.prompts([]) == []


def test_ids_are_those_of_the_models_own_template_call(model: Path) -> None:
    """What is planned is what transformers itself makes of the conversation."""
    own = AutoTokenizer.from_pretrained(model).apply_chat_template(
        list(MANY_TURNS[0].messages), return_dict=True
    )
    prompt = planned(chat_tokenizer(model), MANY_TURNS[0]).prompt
    assert list(prompt.token_ids) == own["input_ids"]


def test_a_blank_before_an_answer_is_not_its_own(make_model: ModelMaker) -> None:
    """A blank that ends the header is the header's, whatever a tokenizer says of its place."""
    template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )
    asked = conversation(("user", "Hello"), ("assistant", "\nHello"))
    prompt = planned(chat_tokenizer(make_model("blank", template)), asked).prompt
    parts = [("user: Hello<|im_end|>assistant:", 0), (" ", 0), ("\n", 1), ("Hello<|im_end|>", 1)]
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)


def test_a_bos_is_not_doubled(make_model: ModelMaker) -> None:
    """The tokenizer's own BOS stands before plain text, unless the text or a template has one."""
    template = "{{ '<|endoftext|>' }}" + CHATML
    tokenizer = chat_tokenizer(make_model("with-bos", template), allows_full_mask=True)
    bos = by_hand([("<|endoftext|>", 1)])[0]
    hello = by_hand([("Hello", 1)])[0]
    for text in ("Hello", "<|endoftext|>Hello"):
        prompt = planned(tokenizer, PlainText(text)).prompt
        assert list(prompt.token_ids) == bos + hello
        assert prompt.loss_mask() == b"\1" * (1 + len(hello))
    asked = planned(tokenizer, MANY_TURNS[0]).prompt
    assert list(asked.token_ids) == bos + by_hand(MANY_TURNS[1])[0]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (conversation(("user", "Hello")), "no-loss-tokens"),
        (conversation(("user", "Hello"), ("assistant", "very " * 200)), "too-long"),
        (TokenIds(array("i", [1] * 201), ((1, 2),)), "too-long"),
        (TokenIds(array("i", [1, 2]), ()), "no-loss-tokens"),
        (TokenIds(array("i", [1, 2]), ((0, 2),)), "all-loss-tokens"),
        (TokenIds(array("i", [1, 380]), ((1, 2),)), "token-outside-vocabulary"),
        (TokenIds(array("i", [-1, 2]), ((1, 2),)), "token-outside-vocabulary"),
        (PlainText("Hello"), "all-loss-tokens"),
    ],
)
def test_what_cannot_be_trained_on_is_rejected(
    tokenizer: ChatTokenizer, content: Conversation | PlainText | TokenIds, kind: str
) -> None:
    """Without a loss, with nothing but loss, too long, or unknown to the model: left out."""
    assert refusal(tokenizer, content).kind == kind


def test_masks_of_one_kind_are_planned_when_asked_for(model: Path) -> None:
    """Prompts without any loss, and with nothing else, may be what somebody wants."""
    tokenizer = chat_tokenizer(model, allows_empty_mask=True, allows_full_mask=True)
    question = conversation(("user", "Hello"))
    assert planned(tokenizer, question).prompt.loss_spans == ()
    ids = TokenIds(array("i", [1, 2]), ((0, 2),))
    assert planned(tokenizer, ids).prompt.loss_spans == ((0, 2),)


def test_the_longest_prompt_is_accepted(model: Path) -> None:
    """A prompt of exactly the most tokens passes, one of a token more does not."""
    num_tokens = planned(chat_tokenizer(model), DEFAULTED[0]).prompt.num_tokens
    longest = planned(chat_tokenizer(model, max_tokens=num_tokens), DEFAULTED[0])
    assert (longest.prompt.num_tokens, longest.is_cut) == (num_tokens, False)
    error = refusal(chat_tokenizer(model, max_tokens=num_tokens - 1), DEFAULTED[0])
    assert f"has {num_tokens} tokens, more than {num_tokens - 1}" in error.message


def test_a_long_prompt_is_cut_when_asked_for(model: Path) -> None:
    """The first tokens remain, with the loss that they had, and the cut is told."""
    ids, mask = by_hand(MANY_TURNS[1])
    for num_tokens in (len(ids) - 1, len(ids) - 3, mask.index(1) + 1):
        cut = planned(chat_tokenizer(model, max_tokens=num_tokens, is_cut=True), MANY_TURNS[0])
        assert cut.is_cut
        assert list(cut.prompt.token_ids) == ids[:num_tokens]
        assert cut.prompt.loss_mask() == mask[:num_tokens]
    lost = chat_tokenizer(model, max_tokens=mask.index(1), is_cut=True)
    assert refusal(lost, MANY_TURNS[0]).kind == "no-loss-tokens"


def test_ids_beyond_the_vocabulary_are_rejected(make_model: ModelMaker) -> None:
    """A tokenizer with more ids than the model has rows is found out."""
    error = refusal(chat_tokenizer(make_model("small-vocabulary", vocab_size=100)), DEFAULTED[0])
    assert (error.kind, "vocabulary of 100" in error.message) == ("token-outside-vocabulary", True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{% if %}",
        "{{ messages[0].content }}",
        "{{ messages[9].content + 1 }}{% generation %}{% endgeneration %}",
    ],
)
def test_a_template_that_refuses_rejects_the_conversation(
    make_model: ModelMaker, template: str
) -> None:
    """Whatever a template raises or leaves out concerns this one conversation."""
    tokenizer = chat_tokenizer(make_model("refusing", template))
    assert refusal(tokenizer, DEFAULTED[0]).kind == "template-refused"


def test_a_text_without_tokens_is_rejected(make_model: ModelMaker) -> None:
    """A template that writes nothing makes no prompt."""
    template = "{% if messages[0].content != 'Hello' %}" + CHATML + "{% endif %}"
    tokenizer = chat_tokenizer(make_model("silent", template))
    assert refusal(tokenizer, conversation(("user", "Hello"))).kind == "prompt-empty"


@pytest.mark.parametrize(
    "template",
    [
        # The block of a macro is noted before what precedes it in the macro is written.
        (
            "{% macro turn(m) %}<|im_start|>{% generation %}{{ m.content }}{% endgeneration %}"
            "{% endmacro %}{% for m in messages %}"
            "{% if m.role == 'assistant' %}{{ turn(m) }}{% else %}{{ m.content }}{% endif %}"
            "{% endfor %}"
        ),
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}",
    ],
)
def test_generation_blocks_that_hold_no_answers_are_refused(
    make_model: ModelMaker, template: str
) -> None:
    """A block that is noted elsewhere than the answer stands, or holds questions, is no mask."""
    error = refusal(chat_tokenizer(make_model("misplaced", template)), DEFAULTED[0])
    assert error.kind == "template-moves-text"


def test_a_template_with_todays_date_gives_the_same_ids_every_day(
    make_model: ModelMaker,
) -> None:
    """The clock that a template may read stands still."""
    dated = make_model("dated", "{{ strftime_now('%d %b %Y') }}\\n" + CHATML)
    fixed = make_model("fixed", "26 Jul 2024\\n" + CHATML)
    prompts = [planned(chat_tokenizer(folder), DEFAULTED[0]) for folder in (dated, fixed)]
    assert prompts[0] == prompts[1]


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def with_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def without_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


@pytest.mark.parametrize(
    ("damage", "failure", "kind"),
    [
        (without_tokenizer, MissingError, "tokenizer-missing"),
        (with_damaged_tokenizer, MissingError, "tokenizer-missing"),
        (without_template, UsageError, "template-missing"),
    ],
)
def test_what_the_folder_lacks_is_named_when_a_row_needs_it(
    make_model: ModelMaker,
    damage: Callable[[Path], None],
    failure: type[StatetapError],
    kind: str,
) -> None:
    """A sentence that names the folder, not a traceback; ready ids need nothing of it."""
    folder = make_model(damage.__name__)
    damage(folder)
    tokenizer = chat_tokenizer(folder)
    ids = TokenIds(array("i", [5, 6, 7]), ((1, 2),))
    assert list(planned(tokenizer, ids).prompt.token_ids) == [5, 6, 7]
    assert tokenizer.template_digest == ""
    assert bool(tokenizer.digest) == (damage is not without_tokenizer)
    with pytest.raises(failure, match=str(folder)) as caught:
        tokenizer.prompts([ids, DEFAULTED[0]])
    assert caught.value.kind == kind


def test_plain_text_needs_no_template(make_model: ModelMaker) -> None:
    """A base model has a tokenizer and no template."""
    folder = make_model("base", None)
    tokenizer = chat_tokenizer(folder, allows_full_mask=True)
    assert planned(tokenizer, PlainText("Hello")).prompt.num_tokens > 1


def test_digests_change_with_what_they_are_of(make_model: ModelMaker) -> None:
    """Another template or tokenizer file is another digest; the same ones are the same."""
    folder = make_model("digests")
    digests = [chat_tokenizer(folder).digest, chat_tokenizer(folder).template_digest]
    assert digests[1] == ChatTemplate(CHATML, {}).digest
    (folder / "chat_template.jinja").write_text(CHATML_WITH_BLOCK)
    assert chat_tokenizer(folder).template_digest != digests[1]
    assert chat_tokenizer(folder).digest == digests[0]
    (folder / "vocab.txt").write_text("")
    assert chat_tokenizer(folder).digest != digests[0]


#: Writes tools and calls, as templates of that name do.
TOOL_USE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.role + ': ' }}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def in_config(folder: Path, templates: dict[str, str]) -> None:
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    path = folder / "tokenizer_config.json"
    named = [{"name": name, "template": source} for name, source in templates.items()]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": named}))


def in_files(folder: Path, templates: dict[str, str]) -> None:
    (folder / "additional_chat_templates").mkdir()
    for name, source in templates.items():
        file = f"additional_chat_templates/{name}.jinja"
        (folder / ("chat_template.jinja" if name == "default" else file)).write_text(source)


@pytest.mark.parametrize("keep", [in_config, in_files])
def test_of_named_templates_the_one_for_tools_is_taken_where_there_are_tools(
    make_model: ModelMaker, keep: Callable[[Path, dict[str, str]], None]
) -> None:
    """A conversation with tools goes through ``tool_use``, any other through ``default``."""
    folder = make_model(keep.__name__)
    digests = {chat_tokenizer(folder).template_digest}
    keep(folder, {"default": CHATML, "tool_use": TOOL_USE})
    tokenizer, own = chat_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    turns = (
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "", "tool_calls": [call("weather")]},
        {"role": "tool", "content": "Paris"},
        {"role": "assistant", "content": "Thank you."},
    )
    prompt = planned(tokenizer, Conversation(turns, WEATHER)).prompt
    kept = {"tokenize": False, "add_generation_prompt": False}
    text = own.apply_chat_template(list(turns), tools=list(WEATHER), **kept)
    asked, question, rest = text.partition("user: Hello<|im_end|>assistant: ")
    called, results, answered = rest.partition("tool: Paris<|im_end|>assistant: ")
    parts = [(asked + question, 0), (called, 1), (results, 0), (answered, 1)]
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)
    assert asked
    assert called.startswith('{"name": "weather"')
    plain = planned(tokenizer, MANY_TURNS[0]).prompt
    assert (list(plain.token_ids), plain.loss_mask()) == by_hand(MANY_TURNS[1])
    assert refusal(tokenizer, Conversation(turns, None)).kind == "template-drops-text"
    digests.add(tokenizer.template_digest)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    in_config(folder, {"default": CHATML, "tool_use": TOOL_USE + " "})
    digests.add(chat_tokenizer(folder).template_digest)
    assert len(digests) == 3


def test_a_content_that_is_none_is_not_written_as_a_word(make_model: ModelMaker) -> None:
    """Jinja makes "None" of it; a word of that name which the row holds is written."""
    tokenizer = chat_tokenizer(make_model("none", TOOL_USE))
    called = [call("weather", city="None")]
    asked = Conversation(
        (
            {"role": "user", "content": "None"},
            {"role": "assistant", "content": None, "tool_calls": called},
        ),
        None,
    )
    prompt = planned(tokenizer, asked).prompt
    written = '{"name": "weather", "arguments": {"city": "None"}}<|im_end|>'
    parts = [("user: None<|im_end|>assistant: ", 0), (written, 1)]
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)
    # This one needs no content, and changes without it.
    choosy = TOOL_USE.replace("{{ m.content }}", "{{ m.content if m.content is string else '-' }}")
    prompt = planned(chat_tokenizer(make_model("choosy", choosy)), asked).prompt
    parts[1] = ("-" + written, 1)
    assert (list(prompt.token_ids), prompt.loss_mask()) == by_hand(parts)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_conversation_far_too_long_costs_little(model: Path, *, is_cut: bool) -> None:
    """Turns behind what is planned are not rendered again and again."""
    turns = [("user", "Hello"), ("assistant", "Hello there."), ("user", "Hello " * 50)]
    tokenizer = chat_tokenizer(model, max_tokens=40, is_cut=is_cut)
    rendered = []
    render = ChatTemplate.render

    def counted(self: ChatTemplate, *arguments: Any, **options: Any) -> str:
        rendered.append(len(arguments[0]))
        return render(self, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ChatTemplate, "render", counted)
        [result] = tokenizer.prompts([conversation(*turns * 100, ("assistant", "Hello"))])
    assert [number for number in rendered if number > 10] == [301]
    if is_cut:
        assert isinstance(result, TokenisedPrompt)
        whole = planned(chat_tokenizer(model, 40, is_cut=True), conversation(*turns))
        assert result == whole
    else:
        assert isinstance(result, RejectError)
        assert result.kind == "too-long"


@pytest.fixture(scope="module")
def small_tokenizers() -> list[Tokenizer]:
    """One whose tokens are the text's bytes, and one that lowers, composes and marks blanks."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=60, show_progress=False)
    tokenizer.train_from_iterator(["The quick brown fox", "hello there"], trainer)
    bytewise = byte_level_bpe()
    bytewise.no_truncation()
    bytewise.no_padding()
    return [tokenizer, bytewise]


@given(
    text=st.text(st.sampled_from("Thequick brown\n\u0301\u0308é🎉ﬁ①A\u0327"), max_size=40),
    bounds=st.lists(st.integers(0, 40), max_size=6),
)
@settings(max_examples=300, deadline=None)
def test_spans_are_those_of_a_look_at_every_token(
    small_tokenizers: list[Tokenizer], text: str, bounds: list[int]
) -> None:
    """Looking at few tokens covers what looking at each of them would, whatever is normalised."""
    edges = sorted(min(bound, len(text)) for bound in bounds)
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    for tokenizer in small_tokenizers:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        assert _covered(encoding, spans) == bytes(
            any(
                max(end, start + 1) > first and start < last
                for first, last in spans
                if last > first
            )
            for start, end in encoding.offsets
        )


def _covered(encoding: Encoding, spans: list[tuple[int, int]]) -> bytes:
    covered = token_spans(
        len(encoding),
        lambda token: encoding.token_to_chars(token) or (0, 0),
        lambda _: False,
        spans,
    )
    assert all(left[1] < right[0] for left, right in pairwise(covered))
    mask = bytearray(len(encoding))
    for start, end in covered:
        mask[start:end] = b"\1" * (end - start)
    return bytes(mask)


def test_ids_do_not_depend_on_parallelism(model: Path) -> None:
    """One thread or many, a batch gives the same."""
    script = (
        "import sys; from pathlib import Path; from statetap_contract import ModelFolder\n"
        "from statetap_producer.prompts.chat_tokenizer import ChatTokenizer\n"
        "from statetap_producer.reading.conversation import Conversation\n"
        "from statetap_producer.prompts.prompt_rules import PromptRules\n"
        "turns = lambda n: ({'role': 'user', 'content': 'Hello'}, "
        "{'role': 'assistant', 'content': f'Hello there {n}'})\n"
        "tokenizer = ChatTokenizer(ModelFolder.read(Path(sys.argv[1])), PromptRules(200))\n"
        "print(tokenizer.prompts([Conversation(turns(n), None) for n in range(64)]))\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, str(model)],
            env={**os.environ, "TOKENIZERS_PARALLELISM": flag},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for flag in ("false", "true")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("TokenisedPrompt") == 64
