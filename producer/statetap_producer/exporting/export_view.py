"""How an export looks in a terminal, and to a script."""

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from statetap_producer.exporting.export import ExportOutcome
from statetap_producer.exporting.export_plan import ExportPlan
from statetap_producer.exporting.norm_step import NORM_WORDS
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.fact_table import fact_table


def export_plan_view(plan: ExportPlan) -> RenderableType:
    """What will be written, a fact a line."""
    content, step = plan.content, plan.step
    table = fact_table(f"export for {plan.trainer.name}")
    samples = f"{len(plan.table):,}"
    if content.num_val:
        samples += f", {content.num_train:,} for training and {content.num_val:,} for validation"
    table.add_row("samples", samples)
    table.add_row("tokens", f"{int(plan.table.num_tokens.sum()):,}")
    table.add_row("size", f"{decimal(plan.num_bytes)}, {decimal(plan.free_bytes)} free")
    table.add_row("states", f"{content.spec.dtype}, as captured")
    how = "as captured" if step.norm is None else "converted, by the model's own"
    table.add_row("last hidden states", f"{NORM_WORDS[step.written]}, {how}")
    if (vocabulary := content.vocabulary) is not None:
        table.add_row(
            "draft vocabulary",
            f"{len(vocabulary.d2t):,} of {len(vocabulary.t2d):,} tokens, "
            f"{vocabulary.coverage:.2%} of those in the loss",
        )
    for name, value in plan.trainer.facts(content).items():
        table.add_row(f"its --{name.replace('_', '-')}", f"{value}")
    if plan.is_begun:
        table.add_row("goes on with", Text(f"the export in {plan.out}"))
    if plan.num_later:
        later = counted(plan.num_later, "sample")
        table.add_row("left out", f"{later} stored since that was begun; they want a new folder")
    return table


def export_outcome_view(plan: ExportPlan, outcome: ExportOutcome) -> RenderableType:
    """What was done, in a sentence or three."""
    lines = []
    if outcome.num_proven:
        lines.append(
            Text(f"{counted(outcome.num_proven, 'file')} there already, proven by reading")
        )
    if outcome.num_damaged:
        files = counted(outcome.num_damaged, "file")
        lines.append(Text(f"{files} damaged or gone, written anew", "yellow"))
    lines.append(Text(f"{counted(outcome.num_files, 'file')} in {plan.out}", "bold green"))
    return Group(*lines)


def export_json(plan: ExportPlan, outcome: ExportOutcome) -> dict[str, object]:
    """The export's record, and what was done."""
    return plan.record | {
        "out": str(plan.out),
        "num_bytes": plan.num_bytes,
        "num_later": plan.num_later,
        "num_files": outcome.num_files,
        "num_proven": outcome.num_proven,
        "num_damaged": outcome.num_damaged,
    }
