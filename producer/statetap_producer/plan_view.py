"""How a plan looks in a terminal."""

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from statetap_producer.fact_table import fact_table
from statetap_producer.make_plan import PlanOutcome


def plan_table(outcome: PlanOutcome) -> Table:
    """A run's inputs and numbers, one a line."""
    record = outcome.record
    inputs, counts, spec = record.inputs, record.counts, record.inputs.spec
    share = counts.num_loss_tokens / counts.num_tokens
    table = fact_table(f"run {record.name}")
    table.add_row("dataset", Text(inputs.dataset))
    table.add_row(
        "model", Text(f"{spec.model}, layers {','.join(map(str, spec.layers))}, {spec.dtype}")
    )
    table.add_row("conversations read", f"{counts.num_read:,}")
    table.add_row("prompts planned", f"[bold]{counts.num_planned:,}[/]")
    table.add_row("duplicates", f"{counts.num_duplicates:,}")
    table.add_row("left out", f"{sum(reason.num_rows for reason in record.left_out):,}")
    for reason in record.left_out:
        table.add_row(
            f"  {reason.kind}",
            Text(
                f"{reason.num_rows:,}, first {inputs.dataset}:{reason.first_line}: "
                f"{reason.first_message}"
            ),
        )
    table.add_row("tokens", f"{counts.num_tokens:,}")
    table.add_row(
        "tokens a prompt",
        f"{counts.min_tokens:,} to {counts.max_tokens:,}, half have at most "
        f"{counts.median_tokens:,}",
    )
    table.add_row("loss is taken over", f"{share:.0%} of them, {counts.num_loss_tokens:,}")
    table.add_row("room needed", decimal(record.shard_bytes))
    table.add_row("room free", decimal(outcome.free_bytes))
    return table
