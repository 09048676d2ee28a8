"""``statetap generate`` on a real server: answers are the model's own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from statetap_local.services import LocalServer
from transformers import AutoModelForCausalLM, AutoTokenizer

_NUM_TOKENS = 24


def statetap(*arguments: object) -> str:
    command = [str(Path(sys.executable).parent / "statetap"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def conversations(tmp_path: Path) -> list[list[dict[str, Any]]]:
    """Of one, two and three turns of the user, and written to ``chats.jsonl``."""
    words = "drafter", "state", "list of numbers"
    conversations = [
        [
            {"role": role, "content": f"{text} {word} {number}?"}
            for word in words[: 1 + number % 3]
            for role, text in (("user", "What is a"), ("assistant", "Hidden:"))
        ][:-1]
        for number in range(9)
    ]
    lines = [json.dumps({"messages": messages}) for messages in conversations]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    return conversations


def greedy(model: Path, conversations: list[list[dict[str, Any]]]) -> list[str]:
    """What HF transformers goes on with, one conversation at a time."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    texts = []
    for messages in conversations:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = reference.generate(**prompt, max_new_tokens=_NUM_TOKENS, do_sample=False)
        new = ids[0][prompt["input_ids"].shape[1] :]
        texts.append(tokenizer.decode(new, skip_special_tokens=True))
    return texts


def test_answers_are_what_the_model_would_say(
    server: LocalServer,
    tiny_model: Path,
    tmp_path: Path,
    conversations: list[list[dict[str, Any]]],
) -> None:
    """Filled in and replaced, in the order of the dataset; what comes out is planned."""
    dataset, options = tmp_path / "chats.jsonl", ("--server", server.url, "--temperature", 0)
    limit = ("--max-new-tokens", _NUM_TOKENS)
    filled = tmp_path / "filled.jsonl"
    statetap("generate", dataset, "--out", filled, *options, *limit)
    rows = [json.loads(line) for line in filled.read_text().splitlines()]
    assert [row["messages"][:-1] for row in rows] == conversations
    assert [row["messages"][-1]["content"] for row in rows] == greedy(tiny_model, conversations)

    replaced = tmp_path / "replaced.jsonl"
    statetap("generate", dataset, "--out", replaced, *options, *limit, "--replace")
    own = [json.loads(line)["messages"] for line in replaced.read_text().splitlines()]
    for number in range(1, 6, 2):
        longer = [messages for messages in own if len(messages) > number]
        before = [messages[:number] for messages in longer]
        assert [messages[number]["content"] for messages in longer] == greedy(tiny_model, before)
    users = [[turn for turn in messages if turn["role"] == "user"] for messages in own]
    assert users == [[turn for turn in old if turn["role"] == "user"] for old in conversations]

    shown = statetap("plan", filled, "--run", tmp_path / "run", "--model", tiny_model)
    assert " ".join(shown.split()).count("prompts planned 9") == 1
