"""Loss masks of real chat templates, token by token against what a person marked."""

# ruff: noqa: RUF001 - DeepSeek writes its tokens with such bars

from datetime import UTC, datetime
from pathlib import Path

import pytest
from statetap_contract import RejectError
from statetap_producer.prompts.chat_tokenizer import ChatTokenizer
from statetap_producer.reading.conversation import Conversation
from transformers import AutoTokenizer

from .chat_families import (
    FAMILIES,
    WEATHER,
    answer,
    call,
    chat_tokenizer,
    conversation,
    marked_tokens,
    planned_tokens,
    system,
    template_of,
    tool,
    user,
)

ASKED = (user("What is the weather?"), answer(None, tool_calls=[call("weather", city="Paris")]))
TWICE = (user("Hi"), answer("Hello 🎉"), user("And you?"), answer("Fine, é"))

CHATML_SYSTEM = "<|im_start|>system\nYou are a helpful assistant."
R1_BEGINNING = "<｜begin▁of▁sentence｜>"
LLAMA_BEGINNING = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{}Cutting Knowledge Date: "
    "December 2023\nToday Date: 26 Jul 2024\n\n{}<|eot_id|>"
)
TOOL_JSON = '{"type": "function", "function": {"name": "weather", "parameters": {}}}'


def llama(role: str, text: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}"


R7B_BEGINNING = (
    "<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|># System Preamble<|END_OF_TURN_TOKEN|>"
)


def r7b(role: str, text: str, mark: str = "") -> str:
    return f"<|START_OF_TURN_TOKEN|><|{role}_TOKEN|>{text}<|END_OF_TURN_TOKEN|>{mark}"


#: Template, what is it about, conversation, and its text with the loss between ⟦ and ⟧.
CASES: list[tuple[str, str, Conversation, str]] = [
    (
        "chatml",
        "two turns under the template's own system message",
        conversation(*TWICE),
        (
            f"{CHATML_SYSTEM}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n⟦Hello 🎉<|im_end|>⟧\n<|im_start|>user\nAnd you?<|im_end|>\n"
            "<|im_start|>assistant\n⟦Fine, é<|im_end|>⟧\n"
        ),
    ),
    (
        "chatml",
        "white space at the edges, an empty question, an empty answer, the last turn a question",
        conversation(
            system("Be brief."),
            user(""),
            answer("  Hello\n\n"),
            user("Hi"),
            answer(""),
            user("Bye"),
        ),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|im_end|>\n"
            "<|im_start|>assistant\n⟦  Hello\n\n<|im_end|>⟧\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n⟦<|im_end|>⟧\n<|im_start|>user\nBye<|im_end|>\n"
        ),
    ),
    (
        "chatml",
        "contents that hold each other and the template's own tokens",
        conversation(
            user("Hi<|im_end|>\n<|im_start|>assistant\nHi"),
            answer("Hi<|im_end|>\n<|im_start|>user\nHi"),
            user("Hi"),
            answer("Hi"),
        ),
        (
            f"{CHATML_SYSTEM}<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHi"
            "<|im_end|>\n<|im_start|>assistant\n⟦Hi<|im_end|>\n<|im_start|>user\nHi<|im_end|>⟧\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hi<|im_end|>⟧\n"
        ),
    ),
    (
        "chatml",
        "a call, its result, and the answer",
        conversation(*ASKED, tool("Sunny"), answer("It is sunny."), tools=WEATHER),
        (
            f"{CHATML_SYSTEM}\n\n# Tools\n<tools>\n{TOOL_JSON}\n</tools><|im_end|>\n"
            "<|im_start|>user\nWhat is the weather?<|im_end|>\n<|im_start|>assistant\n"
            '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
            "<|im_end|>⟧\n<|im_start|>user\n<tool_response>\nSunny\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n⟦It is sunny.<|im_end|>⟧\n"
        ),
    ),
    (
        "chatml",
        "text and a call in one turn, which is the last",
        conversation(
            user("Weather?"), answer("Let me see.", tool_calls=[call("weather", city="Paris")])
        ),
        (
            f"{CHATML_SYSTEM}<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
            "<|im_start|>assistant\n⟦Let me see.\n<tool_call>\n"
            '{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>⟧\n'
        ),
    ),
    (
        "qwen3",
        "an empty thought in the last answer only",
        conversation(*TWICE),
        (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello 🎉<|im_end|>⟧\n"
            "<|im_start|>user\nAnd you?<|im_end|>\n<|im_start|>assistant\n"
            "⟦<think>\n\n</think>\n\nFine, é<|im_end|>⟧\n"
        ),
    ),
    (
        "qwen3",
        "reasoning within contents, dropped from the earlier one",
        conversation(
            system("Be brief."),
            user("Hi"),
            answer("<think>\nThey greet me.\n</think>\n\nHello!"),
            user("And you?"),
            answer("<think>\nI am fine.\n</think>\n\nFine."),
        ),
        (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n⟦Hello!<|im_end|>⟧\n<|im_start|>user\nAnd you?<|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\nI am fine.\n</think>\n\nFine.<|im_end|>⟧\n"
        ),
    ),
    (
        "qwen3",
        "reasoning beside contents, through a chain of calls",
        conversation(
            user("Hi"),
            answer("Hello!", reasoning_content="They greet me."),
            user("Weather?"),
            answer(
                "", reasoning_content="I ask.", tool_calls=[call("weather"), call("weather", x=1)]
            ),
            tool("Sunny"),
            tool(""),
            answer(None, tool_calls=[call("weather", city="Paris")]),
            tool("Rain"),
            answer("Sunny, then rain.", reasoning_content="So that is it."),
        ),
        (
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n⟦Hello!<|im_end|>⟧\n"
            "<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\n"
            '⟦<think>\nI ask.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {}}\n'
            '</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"x": 1}}\n</tool_call>'
            "<|im_end|>⟧\n<|im_start|>user\n<tool_response>\nSunny\n</tool_response>\n"
            "<tool_response>\n\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
            '⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
            "<|im_end|>⟧\n<|im_start|>user\n<tool_response>\nRain\n</tool_response><|im_end|>\n"
            "<|im_start|>assistant\n⟦<think>\nSo that is it.\n</think>\n\nSunny, then rain."
            "<|im_end|>⟧\n"
        ),
    ),
    *(
        (
            "qwen3",
            f"a thought that the row calls {name}",
            conversation(user("Hi"), answer("Hello!", **{name: "They greet me."})),
            (
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
                "⟦<think>\nThey greet me.\n</think>\n\nHello!<|im_end|>⟧\n"
            ),
        )
        for name in ("reasoning_content", "reasoning", "thinking")
    ),
    (
        "llama31",
        "two turns, contents trimmed",
        conversation(
            system(" Be brief. "), user("Hi\n"), answer(" Hello 🎉 \n"), user("Ok?"), answer("Yes")
        ),
        LLAMA_BEGINNING.format("", "Be brief.")
        + llama("user", "Hi<|eot_id|>")
        + llama("assistant", "⟦Hello 🎉<|eot_id|>⟧")
        + llama("user", "Ok?<|eot_id|>")
        + llama("assistant", "⟦Yes<|eot_id|>⟧"),
    ),
    (
        "llama31",
        "the question moved behind the tools, a result as JSON",
        conversation(
            user("Weather?"),
            answer("", tool_calls=[call("weather", city="Paris")]),
            tool("Sunny"),
            answer("It is sunny."),
            tools=WEATHER,
        ),
        LLAMA_BEGINNING.format("Environment: ipython\n", "")
        + llama("user", "Given these functions, answer with a call.\n\n")
        + '{\n    "type": "function",\n    "function": {\n        "name": "weather",\n'
        + '        "parameters": {}\n    }\n}\n\nWeather?<|eot_id|>'
        + llama("assistant", '⟦{"name": "weather", "parameters": {"city": "Paris"}}<|eot_id|>⟧')
        + llama("ipython", '"Sunny"<|eot_id|>')
        + llama("assistant", "⟦It is sunny.<|eot_id|>⟧"),
    ),
    (
        "mistral",
        "two turns without a generation prompt",
        conversation(*TWICE),
        "<s>[INST] Hi[/INST]⟦ Hello 🎉</s>⟧[INST] And you?[/INST]⟦ Fine, é</s>⟧",
    ),
    (
        "mistral",
        "the last turn a question, which has the system message",
        conversation(system("Be brief."), user("Hi"), answer("Hello "), user("Hi")),
        "<s>[INST] Hi[/INST]⟦ Hello</s>⟧[INST] Be brief.\n\nHi[/INST]",
    ),
    (
        "mistral",
        "a call",
        conversation(*ASKED, tool("1"), answer("One.")),
        (
            "<s>[INST] What is the weather?[/INST]"
            '⟦[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}]</s>⟧'
            '[TOOL_RESULTS] {"content": 1}[/TOOL_RESULTS]⟦ One.</s>⟧'
        ),
    ),
    (
        "mistral_nemo",
        "the system message moved into the last question",
        conversation(system("Be brief."), *TWICE),
        "<s>[INST]Hi[/INST]⟦Hello 🎉</s>⟧[INST]Be brief.\n\nAnd you?[/INST]⟦Fine, é</s>⟧",
    ),
    (
        "mistral_nemo",
        "marks of its own, and contents that hold each other, beside a system message that moves",
        conversation(
            system("Hi"), user("Hi \ue000\ue001"), answer("Hi Hi"), user("Hi"), answer(" Hi ")
        ),
        "<s>[INST]Hi \ue000\ue001[/INST]⟦Hi Hi</s>⟧[INST]Hi\n\nHi[/INST]⟦ Hi </s>⟧",
    ),
    (
        "gemma3",
        "the system message in the first question",
        conversation(system("Be brief."), *TWICE),
        (
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\n⟦Hello 🎉<end_of_turn>⟧\n"
            "<start_of_turn>user\nAnd you?<end_of_turn>\n<start_of_turn>model\n"
            "⟦Fine, é<end_of_turn>⟧\n"
        ),
    ),
    (
        "deepseek_r1",
        "a generation prompt that opens a thought, answers without theirs",
        conversation(
            system("Be brief."),
            user("Hi"),
            answer("<think>\nThey greet me.\n</think>\n\nHello 🎉"),
            user("And you?"),
            answer("<think>Fine.</think>Fine, é"),
        ),
        (
            f"{R1_BEGINNING}Be brief.<｜User｜>Hi<｜Assistant｜>⟦\n\nHello 🎉<｜end▁of▁sentence｜>⟧"
            "<｜User｜>And you?<｜Assistant｜>⟦Fine, é<｜end▁of▁sentence｜>⟧"
        ),
    ),
    (
        "deepseek_r1",
        "a single call, which ends without a token, arguments as text, no prompt after results",
        conversation(*ASKED, tool("Sunny"), answer("It is sunny."), user("Ok"), answer("Bye")),
        (
            f"{R1_BEGINNING}<｜User｜>What is the weather?<｜Assistant｜>"
            "⟦<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
            '{"city": "Paris"}\n```<｜tool▁call▁end｜>⟧'
            "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>Sunny<｜tool▁output▁end｜>"
            "<｜tool▁outputs▁end｜>⟦It is sunny.<｜end▁of▁sentence｜>⟧"
            "<｜User｜>Ok<｜Assistant｜>⟦Bye<｜end▁of▁sentence｜>⟧"
        ),
    ),
    (
        "kimi_k2",
        "two turns with nothing between them",
        conversation(*TWICE),
        (
            "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
            "<|im_user|>user<|im_middle|>Hi<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>⟦Hello 🎉<|im_end|>⟧"
            "<|im_user|>user<|im_middle|>And you?<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>⟦Fine, é<|im_end|>⟧"
        ),
    ),
    (
        "kimi_k2",
        "text and calls in one turn",
        conversation(
            system("Hi"),
            user("Weather?"),
            answer("I ask.", tool_calls=[call("weather", "weather:0", city="Paris")]),
            tool("Sunny", tool_call_id="weather:0"),
            answer("Sunny."),
        ),
        (
            "<|im_system|>system<|im_middle|>Hi<|im_end|><|im_user|>user<|im_middle|>Weather?"
            "<|im_end|><|im_assistant|>assistant<|im_middle|>⟦I ask.<|tool_calls_section_begin|>"
            '<|tool_call_begin|>weather:0<|tool_call_argument_begin|>{"city": "Paris"}'
            "<|tool_call_end|><|tool_calls_section_end|><|im_end|>⟧<|im_system|>tool<|im_middle|>"
            "## Return of weather:0\nSunny<|im_end|>"
            "<|im_assistant|>assistant<|im_middle|>⟦Sunny.<|im_end|>⟧"
        ),
    ),
    (
        "glm45",
        "turns without an end token; the thought belongs to the answer",
        conversation(
            system("Be brief."),
            user("Hi"),
            answer("Hello 🎉", reasoning_content="They greet me."),
            user("And you?"),
            answer("Fine, é", reasoning_content="Fine."),
        ),
        (
            "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>"
            "⟦\n<think></think>\nHello 🎉⟧<|user|>\nAnd you?<|assistant|>"
            "⟦\n<think>Fine.</think>\nFine, é⟧"
        ),
    ),
    (
        "glm45",
        "a call, whose arguments the template iterates over",
        conversation(*ASKED, tool("Sunny"), answer("It is sunny.")),
        (
            "[gMASK]<sop><|user|>\nWhat is the weather?<|assistant|>⟦\n<think></think>\n<tool_call>"
            "weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>⟧"
            "<|observation|>\n<tool_response>\nSunny\n</tool_response><|assistant|>"
            "⟦\n<think></think>\nIt is sunny.⟧"
        ),
    ),
    (
        "gpt_oss",
        "the last turn with its thought and another end token than the earlier one",
        conversation(
            user("Hi"),
            answer("Hello 🎉", thinking="They greet me."),
            user("And you?"),
            answer("Fine, é", thinking="Fine."),
        ),
        (
            "<|start|>system<|message|>You are ChatGPT.<|end|><|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant⟦<|channel|>final<|message|>Hello 🎉<|end|>⟧"
            "<|start|>user<|message|>And you?<|end|>"
            "<|start|>assistant⟦<|channel|>analysis<|message|>Fine.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Fine, é<|return|>⟧"
        ),
    ),
    (
        "gpt_oss",
        "a call, whose thought is dropped once the answer is there",
        conversation(
            user("Weather?"),
            answer(None, thinking="I ask.", tool_calls=[call("weather", city="Paris")]),
            tool("Sunny", name="weather"),
            answer("Sunny."),
        ),
        (
            "<|start|>system<|message|>You are ChatGPT.<|end|><|start|>user<|message|>Weather?"
            "<|end|><|start|>assistant⟦ to=functions.weather<|channel|>commentary json<|message|>"
            '{"city": "Paris"}<|call|>⟧<|start|>functions.weather to=assistant<|channel|>commentary'
            '<|message|>"Sunny"<|end|>'
            "<|start|>assistant⟦<|channel|>final<|message|>Sunny.<|return|>⟧"
        ),
    ),
    (
        "gpt_oss",
        "a thought under a name that the template does not know",
        conversation(user("Hi"), answer("Hello 🎉", reasoning_content="They greet me.")),
        (
            "<|start|>system<|message|>You are ChatGPT.<|end|><|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant⟦<|channel|>analysis<|message|>They greet me.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hello 🎉<|return|>⟧"
        ),
    ),
    (
        "command_r7b",
        "two tokens that end each answer, of an empty one too",
        conversation(user("Hi"), answer("Hello 🎉"), user("And you?"), answer(""), user("Ok")),
        R7B_BEGINNING
        + r7b("USER", "Hi")
        + r7b("CHATBOT", "⟦<|START_RESPONSE|>Hello 🎉<|END_RESPONSE|>", "⟧")
        + r7b("USER", "And you?")
        + r7b("CHATBOT", "⟦<|START_RESPONSE|><|END_RESPONSE|>", "⟧")
        + r7b("USER", "Ok"),
    ),
    (
        "command_r7b",
        "text and calls in one turn, a result as JSON",
        conversation(
            user("Weather?"),
            answer("I ask.", tool_calls=[call("weather", city="Paris"), call("weather")]),
            tool('"Sunny"\n'),
            answer("<|END_RESPONSE|> Sunny."),
        ),
        R7B_BEGINNING
        + r7b("USER", "Weather?")
        + r7b(
            "CHATBOT",
            "⟦<|START_THINKING|>I ask.<|END_THINKING|><|START_ACTION|>["
            '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}}, '
            '{"tool_call_id": "1", "tool_name": "weather", "parameters": {}}]<|END_ACTION|>',
            "⟧",
        )
        + r7b("SYSTEM", '<|START_TOOL_RESULT|>"\\"Sunny\\"\\n"<|END_TOOL_RESULT|>')
        + r7b("CHATBOT", "⟦<|START_RESPONSE|><|END_RESPONSE|> Sunny.<|END_RESPONSE|>", "⟧"),
    ),
    (
        "phi3",
        "special tokens that take white space along, and one more token at the end",
        conversation(user("Hi"), answer("\nHello"), user("Ok?"), answer("Yes")),
        (
            "<|user|>\nHi<|end|>\n<|assistant|>\n\n⟦Hello<|end|>\n⟧<|user|>\nOk?<|end|>\n"
            "<|assistant|>\n⟦Yes<|end|>\n⟧<|endoftext|>"
        ),
    ),
]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    return {
        name: chat_tokenizer(tmp_path_factory.mktemp(name), family, template_of(name))
        for name, family in FAMILIES.items()
    }


@pytest.mark.parametrize(
    ("name", "asked", "marked"),
    [pytest.param(name, *case, id=f"{name}: {about}") for name, about, *case in CASES],
)
def test_every_token_is_masked_as_a_person_marked_it(
    tokenizers: dict[str, ChatTokenizer], name: str, asked: Conversation, marked: str
) -> None:
    """Tokens and mask are those of the text that a person wrote down and marked."""
    [result] = tokenizers[name].prompts([asked])
    assert not isinstance(result, RejectError), result
    family = FAMILIES[name]
    assert planned_tokens(family, result.prompt) == marked_tokens(family, marked)


MUTE_CALL = (user("Weather?"), answer("Let me see.", tool_calls=[call("weather")]))


@pytest.mark.parametrize(
    ("name", "asked", "what"),
    [
        ("mistral", conversation(system("Be brief."), *TWICE), "turn 1, of role 'system'"),
        ("llama31", conversation(*MUTE_CALL), "turn 2, of role 'assistant'"),
        ("mistral", conversation(*MUTE_CALL), "turn 2, of role 'assistant'"),
        ("gpt_oss", conversation(*MUTE_CALL), "turn 2, of role 'assistant'"),
        (
            "gpt_oss",
            conversation(user("Hi"), answer("", tool_calls=[call("a"), call("weather")])),
            "the call of 'weather' in turn 2",
        ),
        ("gemma3", conversation(*ASKED, tools=None), "the call of 'weather' in turn 2"),
        ("gemma3", conversation(*TWICE, tools=WEATHER), "leaves out the tools"),
        (
            "deepseek_r1",
            conversation({"role": "developer", "content": "Be brief."}, *TWICE),
            "turn 1, of role 'developer'",
        ),
        ("deepseek_r1", conversation(*MUTE_CALL), "the call of 'weather' in turn 2"),
        (
            "kimi_k2",
            conversation(user("Hi"), answer("", tool_calls=[call("weather", "call-1")])),
            "the call of 'weather' in turn 2",
        ),
    ],
)
def test_what_a_template_leaves_out_is_refused(
    tokenizers: dict[str, ChatTokenizer], name: str, asked: Conversation, what: str
) -> None:
    """A conversation is planned as a whole or not at all, and the message names what is lost."""
    [result] = tokenizers[name].prompts([asked])
    assert isinstance(result, RejectError), result
    assert (result.kind, what in result.message) == ("template-drops-text", True), result


def test_all_templates_are_held_against_a_person_s_marks() -> None:
    """Every template among the test data has a case."""
    assert {name for name, *_ in CASES} == FAMILIES.keys()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_text_is_that_of_transformers(
    tmp_path: Path, tokenizers: dict[str, ChatTokenizer], name: str
) -> None:
    """Ids are those that the model's own ``apply_chat_template`` gives."""
    asked = conversation(*TWICE)
    chat_tokenizer(tmp_path, FAMILIES[name], template_of(name))
    own = AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template(
        list(asked.messages),
        return_dict=True,
        strftime_now=datetime(2024, 7, 26, tzinfo=UTC).strftime,
    )
    [result] = tokenizers[name].prompts([asked])
    assert not isinstance(result, RejectError), result
    assert list(result.prompt.token_ids) == own["input_ids"]
