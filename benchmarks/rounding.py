"""What half precision costs a row, and what a mistake does: the figures behind ``crosscheck``.

HF transformers computes the same prompts in float32 and in half precision; no server is involved.
Each slot of each sample has a middle row, one that nine of ten do not exceed, and a worst one. Of
right states the table shows the largest of these, as the bounds must be above it. Of mistakes it
shows the smallest, as some bound must be below it: rows of the next or previous boundary, and of
the next or previous token, in place of the right ones. All are relative row errors,
||a - b|| / ||b||, given also in unit roundoffs u (2^-8 for bfloat16, 2^-11 for float16).

    python benchmarks/rounding.py [--samples N]
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from statetap_local.models import (
    smollm2,
    tiny_deepseek_v3,
    tiny_llama,
    tiny_qwen3,
    tiny_qwen3_moe,
)
from statetap_producer.proving.row_bounds import RowErrors, relative_errors
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

REPOSITORY = Path(__file__).resolve().parents[1]
DATASET = REPOSITORY / "examples" / "data" / "conversations.jsonl"
MODELS = (smollm2, tiny_llama, tiny_qwen3, tiny_qwen3_moe, tiny_deepseek_v3)
HALVES = ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11))

#: For each sample [boundaries, tokens, hidden] float32.
States = list[torch.Tensor]


def main() -> None:
    """Prints the extremes of each comparison, a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=24)
    arguments = parser.parse_args()
    disable_progress_bar()
    for make in MODELS:
        folder = make(REPOSITORY / ".cache" / "models")
        Console(width=120).print(table_of(folder, arguments.samples))


def table_of(folder: Path, num_samples: int) -> Table:
    """Right states and mistakes of one model."""
    prompts = load_prompts(folder, num_samples)
    exact = states(load(folder, torch.float32), prompts)
    slots = slots_of(len(exact[0]) - 1)
    num_rows = sum(map(len, prompts)) * len(slots)
    table = Table(title=f"{folder.name}, {len(prompts)} samples, {num_rows:,} rows of {slots}")
    table.add_column("compared with float32")
    for name in ("middle row", "9 rows in 10", "worst row", "the same in u"):
        table.add_column(name, justify="right")
    for dtype, roundoff in HALVES:
        errors = list(slot_errors(states(load(folder, dtype), prompts), exact, slots))
        found = extremes(errors, max)
        in_roundoffs = ", ".join(f"{value / roundoff:.1f}" for value in found)
        table.add_row(
            f"{str(dtype)[6:]}, largest", *(f"{value:.4f}" for value in found), in_roundoffs
        )
    for name, ours, theirs, places in mistakes(exact, slots):
        found = extremes(slot_errors(ours, theirs, places), min)
        table.add_row(f"{name}, smallest", *(f"{value:.4f}" for value in found), "")
    return table


def mistakes(exact: States, slots: list[int]) -> Iterator[tuple[str, States, States, list[int]]]:
    """Wrong and right states, and the boundaries at which they are compared."""
    # Both have had no norm, or both have: the last boundary has one, and no neighbour.
    aux = slots[:-1]
    yield "next boundary", [rows[1:] for rows in exact], exact, aux
    before = [k - 1 for k in aux]
    yield "previous boundary", exact, [rows[1:] for rows in exact], before
    yield "previous token", [r[:, :-1] for r in exact], [r[:, 1:] for r in exact], slots
    yield "next token", [r[:, 1:] for r in exact], [r[:, :-1] for r in exact], slots


def extremes(found: Iterable[RowErrors], choose: Callable[[Iterable[float]], float]) -> list[float]:
    """The largest or the smallest middle, high and worst error of all."""
    found = list(found)
    return [choose([getattr(e, name) for e in found]) for name in ("middle", "high", "worst")]


def slots_of(num_layers: int) -> list[int]:
    """EAGLE-3's default layers and the last hidden state, as boundary indices."""
    return [2, num_layers // 2, num_layers - 3, num_layers]


def load(folder: Path, dtype: torch.dtype) -> Any:
    """The model in one precision."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def load_prompts(folder: Path, num_samples: int) -> list[list[int]]:
    """Token ids of the first example conversations."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = DATASET.read_text(encoding="utf-8").splitlines()[:num_samples]
    texts = [
        tokenizer.apply_chat_template(json.loads(line)["conversations"], tokenize=False)
        for line in lines
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def states(model: Any, prompts: list[list[int]]) -> States:
    """All boundaries of each prompt; the last one has had the final norm."""
    found = []
    with torch.inference_mode():
        for ids in prompts:
            output = model.base_model(torch.tensor([ids]), output_hidden_states=True)
            found.append(torch.stack([rows[0].float() for rows in output.hidden_states]))
    return found


def slot_errors(ours: States, theirs: States, slots: list[int]) -> Iterator[RowErrors]:
    """The errors of each slot of each sample."""
    for a, b in zip(ours, theirs, strict=True):
        for slot in slots:
            yield RowErrors.of(relative_errors(a[slot], b[slot]))


if __name__ == "__main__":
    main()
