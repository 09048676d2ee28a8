"""How shards look to a person who wants to know what is in them."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text
from statetap_contract import CaptureSpec
from statetap_store import Inspection, Provenance

from statetap_producer.proving.fault_view import fault_lines
from statetap_producer.terminal.fact_table import fact_table

#: Shards listed, and values of a field of provenance; --json has all.
_MOST_SHARDS: Final = 20
_MOST_VALUES: Final = 3

#: Bars of the histogram, and columns of the longest one.
_NUM_BARS: Final = 8
_BAR_COLUMNS: Final = 30

#: Decimal digits that tell every two numbers of a dtype apart.
_DIGITS: Final = {"bfloat16": 4, "float16": 5, "float32": 9}

_NANOSECONDS: Final = 1_000_000_000


def inspection_view(inspection: Inspection) -> RenderableType:
    """Numbers, lengths, where the samples come from, each shard, and the first samples."""
    parts: list[RenderableType] = [_numbers(inspection)]
    if len(inspection.lengths):
        parts += ["", *_lengths(inspection.lengths)]
    if inspection.shards:
        parts += ["", _origin(inspection)]
    if len(inspection.shards) > 1:
        parts += ["", _shard_table(inspection)]
    if inspection.first_samples:
        parts += ["", _samples_table(inspection)]
    if inspection.first_rows:
        parts += ["", _rows_table(inspection)]
    parts += fault_lines(inspection.unreadable, "red")
    return Group(*parts)


def _numbers(inspection: Inspection) -> Table:
    shards = inspection.shards
    num_open = sum(not shard.is_sealed for shard in shards)
    table = fact_table("what is in them")
    table.add_row("samples", f"[bold]{len(inspection.lengths):,}[/]")
    table.add_row("tokens", f"{int(inspection.lengths.sum()):,}")
    table.add_row("shards", f"{len(shards) - num_open:,} sealed, {num_open:,} open")
    payload, on_disk = (
        decimal(sum(getattr(shard, name) for shard in shards))
        for name in ("num_bytes", "disk_bytes")
    )
    table.add_row("size", f"{payload}, {on_disk} on the disk")
    table.add_row("duplicates", _alarming(sum(shard.num_repeated for shard in shards), "yellow"))
    table.add_row("void rows", _alarming(sum(shard.num_void for shard in shards), "yellow"))
    table.add_row("damaged rows", _alarming(sum(shard.num_damaged for shard in shards), "red"))
    return table


def _alarming(number: int, style: str) -> str:
    return f"[{style}]{number:,}[/]" if number else "0"


def _lengths(lengths: npt.NDArray[np.int64]) -> Iterator[RenderableType]:
    shortest, middle, most, longest = _quantiles(lengths)
    yield Text(
        f"tokens a sample: {shortest:,} to {longest:,}, median {middle:,}, 95% have up to {most:,}",
        "italic",
    )
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(justify="right", style="cyan", no_wrap=True)
    table.add_column(no_wrap=True)
    width = -(-(longest - shortest + 1) // _NUM_BARS)
    counts = np.bincount((lengths - shortest) // width)
    for number, count in enumerate(counts.tolist()):
        start = shortest + number * width
        end = min(start + width - 1, longest)
        bar = "█" * -(-count * _BAR_COLUMNS // int(counts.max()))
        span = f"{start:,}" if start == end else f"{start:,} to {end:,}"
        table.add_row(span, Text.assemble((bar, "green"), f" {count:,}" if bar else f"{count:,}"))
    yield table


def _quantiles(lengths: npt.NDArray[np.int64]) -> list[int]:
    """Lengths of real samples: the shortest, the median, of 95%, the longest."""
    return [int(np.quantile(lengths, share, method="inverted_cdf")) for share in (0, 0.5, 0.95, 1)]


def _origin(inspection: Inspection) -> Table:
    table = fact_table("where it comes from")
    specs = list(dict.fromkeys(shard.spec for shard in inspection.shards))
    if len(specs) > 1:
        table.add_row("capture specs", f"[red]{len(specs)} different ones; the first one is[/]")
    for name, value in _spec_facts(specs[0]):
        table.add_row(name, Text(value))
    for field in fields(Provenance):
        values = [getattr(shard.provenance, field.name) for shard in inspection.shards]
        shown = [value if isinstance(value, str) else " ".join(map(str, value)) for value in values]
        table.add_row(field.name.replace("_", " "), Text(_distinct(shown)))
    table.add_row("created", Text(_span([shard.created for shard in inspection.shards])))
    return table


def _spec_facts(spec: CaptureSpec) -> Iterator[tuple[str, str]]:
    norm = "after" if spec.norm == "post" else "before"
    yield "model", f"{spec.model}, revision {spec.revision}"
    yield "layers", f"{', '.join(map(str, spec.layers))}, and the last one {norm} the final norm"
    yield (
        "row",
        f"{', '.join(spec.slot_names)}: {spec.num_slots} x {spec.hidden_size:,} {spec.dtype}, "
        + decimal(spec.row_bytes),
    )
    yield "spec digest", spec.digest


def _distinct(values: Sequence[str]) -> str:
    distinct = [value for value in dict.fromkeys(values) if value] or ["unknown"]
    shown = ", ".join(distinct[:_MOST_VALUES])
    num_others = len(distinct) - _MOST_VALUES
    return f"{shown} and {num_others:,} more" if num_others > 0 else shown


def _span(moments: Sequence[str]) -> str:
    first, last = min(moments), max(moments)
    return first if first == last else f"{first} to {last}"


def _shard_table(inspection: Inspection) -> Table:
    shards = inspection.shards
    num_others = len(shards) - _MOST_SHARDS
    table = Table(
        title="shards"
        if num_others <= 0
        else f"shards, the first {_MOST_SHARDS} of {len(shards):,}",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="cyan",
    )
    table.add_column("shard", overflow="fold")
    table.add_column("")
    for name in ("samples", "tokens", "size", "dupl.", "void", "damaged"):
        table.add_column(name, justify="right")
    for shard in shards[:_MOST_SHARDS]:
        table.add_row(
            Text(shard.path.name),
            "sealed" if shard.is_sealed else "open",
            f"{shard.num_samples:,}",
            f"{shard.num_tokens:,}",
            decimal(shard.num_bytes),
            _alarming(shard.num_repeated, "yellow"),
            _alarming(shard.num_void, "yellow"),
            _alarming(shard.num_damaged, "red"),
        )
    return table


def _samples_table(inspection: Inspection) -> Table:
    first = inspection.first_samples[0]
    table = Table(
        title=Text(f"first samples, of {first.path.name}"),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="cyan",
    )
    table.add_column("key", no_wrap=True)
    table.add_column("tokens", justify="right")
    table.add_column("loss", justify="right")
    table.add_column("appended (UTC)", no_wrap=True)
    for sample in inspection.first_samples:
        loss = sample.num_loss_tokens
        moment = datetime.fromtimestamp(sample.time_ns // _NANOSECONDS, UTC)
        table.add_row(
            sample.key,
            f"{sample.num_tokens:,}",
            "[red]damaged[/]" if loss is None else f"{loss / sample.num_tokens:.0%}",
            f"{moment:%Y-%m-%d %H:%M:%S}",
        )
    return table


def _rows_table(inspection: Inspection) -> Table:
    path = inspection.first_samples[0].path
    spec = next(shard.spec for shard in inspection.shards if shard.path == path)
    digits = _DIGITS[spec.dtype]
    table = Table(
        title="first rows of the first sample",
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="cyan",
    )
    table.add_column("row", justify="right")
    table.add_column("slot")
    num_values = max(len(row.values) for row in inspection.first_rows)
    for number in range(num_values):
        table.add_column(f"[{number}]" if number else "first elements", justify="right")
    table.add_column("norm", justify="right")
    for row in inspection.first_rows:
        values = (f"{value:.{digits}g}" for value in row.values)
        table.add_row(f"{row.row}", row.slot, *values, f"{row.norm:.4g}")
    return table


def inspection_json(inspection: Inspection) -> dict[str, object]:
    """The whole inspection as a JSON object; numbers that JSON cannot say are strings."""
    lengths = inspection.lengths
    quantiles = _quantiles(lengths) if len(lengths) else [None] * 4
    return {
        "num_samples": len(lengths),
        "num_tokens": int(lengths.sum()),
        "lengths": dict(zip(("min", "median", "95%", "max"), quantiles, strict=True)),
        "shards": [
            asdict(shard)
            | {
                "path": str(shard.path),
                "spec": shard.spec.to_json(),
                "spec_digest": shard.spec.digest,
            }
            for shard in inspection.shards
        ],
        "unreadable": [asdict(fault) for fault in inspection.unreadable],
        "first_samples": [
            asdict(sample) | {"path": str(sample.path)} for sample in inspection.first_samples
        ],
        "first_rows": [
            asdict(row) | {"values": list(map(_number, row.values)), "norm": _number(row.norm)}
            for row in inspection.first_rows
        ],
    }


def _number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
