"""How a comparison with HF transformers looks in a terminal."""

import math
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from statetap_producer.proving.crosscheck import CrosscheckOutcome
from statetap_producer.terminal.counted import counted


def outcome_view(outcome: CrosscheckOutcome) -> RenderableType:
    """A line a slot, and the verdict last."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("slot")
    for name in ("largest difference", "relative row error", "smallest cosine"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for slot in outcome.slots:
        table.add_row(
            slot.slot,
            f"{slot.max_absolute:.3g}",
            f"{slot.max_relative:.3g}",
            f"{slot.min_cosine:.6f}",
            "[green]within[/]" if outcome.is_within(slot) else "[red]beyond[/]",
        )
    return Group(
        table,
        Text(f"next token agreed upon in {outcome.next_token_agreement:.2%} of rows"),
        _summary(outcome),
    )


def _summary(outcome: CrosscheckOutcome) -> Text:
    samples, rows = counted(len(outcome.keys), "sample"), counted(outcome.num_tokens, "row")
    looked_at = f"{samples}, {rows} of {outcome.dtype}"
    bound = f"the bound on the {outcome.measure}, {outcome.bound:.3g}"
    if outcome.is_good:
        return Text(f"{looked_at}: all within {bound}", "bold green")
    return Text(f"{looked_at}: beyond {bound}", "bold red")


def outcome_json(outcome: CrosscheckOutcome) -> dict[str, object]:
    """The whole outcome as a JSON object; null stands for what is not a finite number."""
    slots = [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(slot).items()
        }
        for slot in outcome.slots
    ]
    return {"is_good": outcome.is_good} | asdict(outcome) | {"slots": slots}
