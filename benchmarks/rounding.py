"""What half precision alone costs a row: the figures behind the bounds of ``crosscheck``.

HF transformers computes the same prompts in float32 and in half precision; no server is involved.
For comparison: how far a mistake is off, with rows of the neighbouring layer or of the neighbouring
token in place of the right ones. All are relative row errors, ||a - b|| / ||b||, given also in unit
roundoffs u (2^-8 for bfloat16, 2^-11 for float16).

    python benchmarks/rounding.py [--samples N]
"""

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from statetap_local.models import smollm2
from transformers import AutoModelForCausalLM, AutoTokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
DATASET = REPOSITORY / "examples" / "data" / "conversations.jsonl"
LAYERS = (2, 15, 27, 30)  # SmolLM2's default layers, and the last hidden state


def main() -> None:
    """Prints the middle and the worst row of each comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=12)
    arguments = parser.parse_args()
    folder = smollm2(REPOSITORY / ".cache" / "models")
    prompts = load_prompts(folder, arguments.samples)
    exact = states(load(folder, torch.float32), prompts)
    table = Table(title=f"relative row errors, SmolLM2-135M, {sum(map(len, prompts)):,} rows")
    for column in ("comparison with float32", "middle row", "worst row", "worst row in u"):
        table.add_column(column, justify="left" if column.startswith("c") else "right")
    for dtype, roundoff in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        errors = row_errors(states(load(folder, dtype), prompts), exact)
        worst = errors.max().item()
        table.add_row(
            str(dtype), f"{errors.median():.4f}", f"{worst:.4f}", f"{worst / roundoff:.0f}"
        )
    # Rows of layer k against those of the layer before, of token t against those of the one before.
    for name, ours, right in (
        ("neighbouring slot", [rows[:-1] for rows in exact], [rows[1:] for rows in exact]),
        ("neighbouring token", [rows[:, :-1] for rows in exact], [rows[:, 1:] for rows in exact]),
    ):
        errors = row_errors(ours, right)
        table.add_row(name, f"{errors.median():.4f}", f"{errors.max():.4f}", "")
    Console().print(table)


def load(folder: Path, dtype: torch.dtype) -> torch.nn.Module:
    """The model in one precision."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    return model


def load_prompts(folder: Path, num_samples: int) -> list[list[int]]:
    """Token ids of the first example conversations."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = DATASET.read_text(encoding="utf-8").splitlines()[:num_samples]
    texts = [
        tokenizer.apply_chat_template(json.loads(line)["conversations"], tokenize=False)
        for line in lines
    ]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def states(model: torch.nn.Module, prompts: list[list[int]]) -> list[torch.Tensor]:
    """For each prompt [slots, tokens, hidden] float32."""
    found = []
    with torch.inference_mode():
        for ids in prompts:
            output = model(torch.tensor([ids]), output_hidden_states=True)
            found.append(torch.stack([output.hidden_states[k][0].float() for k in LAYERS]))
    return found


def row_errors(ours: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    """Relative errors of all rows of all slots."""
    errors = [
        ((a - b).norm(dim=-1) / b.norm(dim=-1)).flatten() for a, b in zip(ours, exact, strict=True)
    ]
    return torch.cat(errors)


if __name__ == "__main__":
    main()
