"""Chat templates of model families, each with a small real tokenizer that has its tokens."""

# ruff: noqa: RUF001 - DeepSeek writes its tokens with such bars

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from statetap_contract import ModelFolder
from statetap_producer.prompts.chat_tokenizer import ChatTokenizer
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.reading.conversation import Conversation
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from .conftest import NO_WEIGHTS

TEMPLATES = Path(__file__).parent / "data" / "templates"

_SENTENCES = (
    "You are a helpful assistant.\n\nHi there, how are you?\n\n\nI am fine, thank you.",
    'What is the weather in Paris? {"name": "weather", "arguments": {"city": "Paris"}}',
    "<think>\nThey greet me.\n</think>\n\nHello! user system tool assistant model",
)


@dataclass(frozen=True)
class Family:
    """What a template expects of its tokenizer."""

    special: tuple[str, ...]
    #: Added to the vocabulary, but no special tokens.
    added: tuple[str, ...] = ()
    bos: str | None = None
    eos: str | None = None
    #: Whether special tokens take the white space after them along.
    is_greedy: bool = False


CHATML = Family(("<|im_start|>", "<|im_end|>"), ("<tool_call>", "</tool_call>"), eos="<|im_end|>")

FAMILIES = {
    "chatml": CHATML,
    "qwen3": Family(CHATML.special, (*CHATML.added, "<think>", "</think>"), eos="<|im_end|>"),
    "llama31": Family(
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
    ),
    "mistral": Family(
        (
            *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
            *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        ),
        bos="<s>",
        eos="</s>",
    ),
    "mistral_nemo": Family(("<s>", "</s>", "[INST]", "[/INST]"), bos="<s>", eos="</s>"),
    "gemma3": Family(
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), ("\n\n",), bos="<bos>", eos="<eos>"
    ),
    "deepseek_r1": Family(
        (
            *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
            *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
            *("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>"),
            *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        ),
        ("<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
    ),
    "kimi_k2": Family(
        (
            *("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
            *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        ),
        eos="<|im_end|>",
    ),
    "glm45": Family(
        ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        ("<think>", "</think>", "<tool_call>", "</tool_call>"),
    ),
    "gpt_oss": Family(
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>"),
        eos="<|return|>",
    ),
    "command_r7b": Family(
        (
            *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
            *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
            *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>"),
            *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            *("<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
        ),
        bos="<BOS_TOKEN>",
        eos="<|END_OF_TURN_TOKEN|>",
    ),
    "phi3": Family(
        ("<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        eos="<|endoftext|>",
        is_greedy=True,
    ),
}


def template_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


@cache
def tokenizer_of(family: Family) -> PreTrainedTokenizerFast:
    """Byte-level BPE with the family's tokens, none of which needs a neighbour."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, rstrip=family.is_greedy, special=True) for text in family.special]
    )
    tokenizer.add_tokens([AddedToken(text, special=False) for text in family.added])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=family.bos, eos_token=family.eos
    )


def chat_tokenizer(
    root: Path, family: Family, template: str, rules: PromptRules | None = None
) -> ChatTokenizer:
    """A tokenizer on a model folder made for it."""
    folder = root / "model"
    folder.mkdir(parents=True)
    tokenizer = tokenizer_of(family)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 8,
        "hidden_size": 64,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 4096,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(NO_WEIGHTS)
    return ChatTokenizer(ModelFolder.read(folder), rules or PromptRules(4000))


def conversation(
    *messages: dict[str, Any], tools: tuple[dict[str, Any], ...] | None = None
) -> Conversation:
    return Conversation(messages, tools)


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(content: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def tool(content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **fields}


def call(name: str, call_id: str = "call-1", **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


#: One tool, as a row lists it.
WEATHER = ({"type": "function", "function": {"name": "weather", "parameters": {}}},)


def marked_tokens(family: Family, marked: str) -> list[tuple[str, int]]:
    """Tokens and mask of a text in which a person put ``⟦ ⟧`` round what the loss is taken over."""
    is_loss: list[bool] = []
    text, inside = "", False
    for char in marked:
        if char in "⟦⟧":
            inside = char == "⟦"
            continue
        text += char
        is_loss.append(inside)
    encoded = tokenizer_of(family)(text, add_special_tokens=False, return_offsets_mapping=True)
    tokens = tokenizer_of(family).convert_ids_to_tokens(encoded["input_ids"])
    flags = [int(any(is_loss[start:end])) for start, end in encoded["offset_mapping"]]
    return list(zip(tokens, flags, strict=True))


def planned_tokens(family: Family, prompt: Any) -> list[tuple[str, int]]:
    """Tokens and mask of a planned prompt."""
    tokens = tokenizer_of(family).convert_ids_to_tokens(list(prompt.token_ids))
    return list(zip(tokens, prompt.loss_mask(), strict=True))
