"""How a comparison with HF transformers looks in a terminal."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from statetap_producer.proving.causes.find_causes import FoundCause
from statetap_producer.proving.crosscheck import CrosscheckOutcome
from statetap_producer.proving.row_bounds import RowBounds
from statetap_producer.terminal.counted import counted

#: Keys and causes shown; --json has all.
_MOST_KEYS: Final = 5
_MOST_CAUSES: Final = 3


def outcome_view(outcome: CrosscheckOutcome) -> RenderableType:
    """A line a slot, the cause if something is wrong, and the verdict last."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("slot")
    table.add_column("largest difference", justify="right")
    for name in ("row error: middle", "9 in 10", "worst", "smallest cosine"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for slot in outcome.slots:
        beyond = f"[red]beyond in {counted(slot.num_beyond, 'sample')}[/]"
        table.add_row(
            slot.slot,
            f"{slot.max_absolute:.3g}",
            f"{slot.middle_relative:.3g}",
            f"{slot.high_relative:.3g}",
            f"{slot.max_relative:.3g}",
            f"{slot.min_cosine:.6f}",
            beyond if slot.num_beyond else "[green]within[/]",
        )
    return Group(
        table,
        Text(f"next token agreed upon in {outcome.next_token_agreement:.2%} of rows"),
        *_findings(outcome),
        _summary(outcome),
    )


def _findings(outcome: CrosscheckOutcome) -> Iterator[Text]:
    shown = outcome.causes[:_MOST_CAUSES]
    yield from map(_cause_line, shown)
    if (num_others := len(outcome.causes) - len(shown)) > 0:
        yield Text(f"and {counted(num_others, 'other cause')}; --json lists all")
    for advice in dict.fromkeys(cause.advice for cause in shown):
        yield Text.assemble(("what to do", "yellow"), f": {advice}")
    if outcome.bad_keys:
        keys = ", ".join(outcome.bad_keys[:_MOST_KEYS])
        num_others = len(outcome.bad_keys) - _MOST_KEYS
        more = f" and {num_others:,} more; --json lists all" if num_others > 0 else ""
        yield Text(f"samples beyond: {keys}{more}")


def _cause_line(cause: FoundCause) -> Text:
    label = "likely cause" if cause.is_proven else "what is known"
    where = f"{', '.join(cause.slots)}: " if cause.slots else ""
    samples = counted(len(cause.keys), "sample")
    left = ""
    if cause.middle_left is not None:
        left = f"; but for that the middle row is off by {cause.middle_left:.3g}"
    return Text.assemble(
        (label, "yellow"), f" ({cause.kind}): {where}{cause.text} (in {samples}{left})"
    )


def _summary(outcome: CrosscheckOutcome) -> Text:
    samples, rows = counted(len(outcome.keys), "sample"), counted(outcome.num_tokens, "row")
    looked_at = f"{samples}, {rows} of {outcome.dtype}"
    bounds = _words(outcome.bounds)
    if outcome.is_good:
        return Text(f"{looked_at}: all within the bounds, {bounds}", "bold green")
    num_bad = f"{len(outcome.bad_keys):,} of {looked_at}"
    return Text(f"{num_bad}: beyond the bounds, {bounds}", "bold red")


def _words(bounds: RowBounds) -> str:
    if bounds.middle == bounds.worst:
        return f"{bounds.measure} {bounds.worst:.3g}"
    return (
        f"{bounds.measure} of each sample's middle row {bounds.middle:.3g}, of 9 rows in 10 "
        f"{bounds.high:.3g}, of the worst {bounds.worst:.3g}"
    )


def outcome_json(outcome: CrosscheckOutcome) -> dict[str, object]:
    """The whole outcome as a JSON object; null stands for what is not a finite number."""
    fields = {name: _finite(value) for name, value in asdict(outcome).items()}
    return {"is_good": outcome.is_good} | fields


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: _finite(part) for name, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value
