"""A language with rules, and a small Llama that has learned it: a target with states of its own.

A text begins with one of eight rules, each of which says for every word which one follows. Three
words in ten are any word. What follows a word cannot be known without the rule, which stands
nowhere but at the beginning, so a target that has learned it carries it along in its states; nor
without the word, which cannot be foreseen.
"""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

NUM_RULES = 8
NUM_WORDS = 40
TEXT_TOKENS = 32

#: Which word follows which, by rule.
_FOLLOWING = torch.stack(
    [
        torch.randperm(NUM_WORDS, generator=torch.Generator().manual_seed(rule))
        for rule in range(NUM_RULES)
    ]
)
_SURPRISE = 0.3
_NUM_UPDATES = 250


def texts(num_texts: int, seed: int) -> torch.Tensor:
    """int64 [num_texts, TEXT_TOKENS]: words have the ids from 0 on, rules those after them."""
    chance = torch.Generator().manual_seed(seed)
    rules = torch.randint(NUM_RULES, (num_texts,), generator=chance)
    columns = [NUM_WORDS + rules]
    words = torch.randint(NUM_WORDS, (num_texts,), generator=chance)
    for _ in range(TEXT_TOKENS - 1):
        columns.append(words)
        others = torch.randint(NUM_WORDS, (num_texts,), generator=chance)
        is_surprise = torch.rand(num_texts, generator=chance) < _SURPRISE
        words = torch.where(is_surprise, others, _FOLLOWING[rules, words])
    return torch.stack(columns, dim=1)


def train_target(folder: Path) -> LlamaForCausalLM:
    """Four layers of width 64 that know the language; saved as any model is."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=NUM_WORDS + NUM_RULES,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1, done / 20) * (1 - done / _NUM_UPDATES)
    )
    for update in range(_NUM_UPDATES):
        batch = texts(32, seed=update)
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        schedule.step()
    model.save_pretrained(folder)
    return model.eval()
