"""How a plan looks in a terminal, and to a script."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from statetap_producer.planning.estimate import Estimate
from statetap_producer.run.run_record import RunRecord
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.durations import duration
from statetap_producer.terminal.fact_table import fact_table

#: Columns of the longest bar of the histogram.
_BAR_COLUMNS: Final = 24


def plan_table(record: RunRecord, estimate: Estimate) -> Table:
    """A run's inputs, numbers and needs, one a line."""
    inputs, counts, spec = record.inputs, record.counts, record.inputs.spec
    table = fact_table(f"run {record.name}")
    table.add_row("dataset", Text(inputs.dataset))
    table.add_row(
        "model", Text(f"{spec.model}, layers {','.join(map(str, spec.layers))}, {spec.dtype}")
    )
    table.add_row("rows read", f"{counts.num_read:,}")
    table.add_row("prompts planned", f"[bold]{counts.num_planned:,}[/]")
    if counts.num_cut:
        table.add_row("  of them cut", f"{counts.num_cut:,}, to {inputs.rules.max_tokens:,} tokens")
    table.add_row("duplicates", f"{counts.num_duplicates:,}")
    table.add_row("left out", f"{sum(reason.num_rows for reason in record.left_out):,}")
    for reason in record.left_out:
        place = f"{reason.first_file}:{reason.first_line}"
        table.add_row(
            f"  {reason.kind}",
            Text(f"{reason.num_rows:,}, first {place}: {reason.first_message}"),
        )
    table.add_row("tokens", f"{counts.num_tokens:,}")
    share = counts.num_loss_tokens / counts.num_tokens
    table.add_row("loss is taken over", f"{share:.0%} of them, {counts.num_loss_tokens:,}")
    table.add_row(
        "tokens a prompt",
        f"{counts.min_tokens:,} to {counts.max_tokens:,}, half have at most "
        f"{counts.median_tokens:,}",
    )
    for label, bar in _histogram(counts.histogram):
        table.add_row(f"  {label}", bar)
    table.add_row("shards", f"{decimal(estimate.shard_bytes)}, {decimal(estimate.free_bytes)} free")
    table.add_row("shared memory", _shared_memory(estimate))
    table.add_row("time", _time(record, estimate))
    return table


def plan_json(record: RunRecord, estimate: Estimate) -> dict[str, object]:
    """``run.json``'s object and, under ``estimate``, bytes, tokens/s and seconds."""
    server = estimate.server
    needs: dict[str, object] = {
        "shard_bytes": estimate.shard_bytes,
        "free_bytes": estimate.free_bytes,
        "dump_bytes": estimate.dump_bytes,
        "server": None,
    }
    if server is not None:
        needs["server"] = {
            "prefill": asdict(server.rate),
            "host": server.host,
            "dumps": str(server.dumps),
            "free_bytes": server.free_bytes,
            "seconds": record.counts.num_tokens / server.rate.tokens_per_s,
        }
    return record.to_json() | {"estimate": needs}


def _histogram(counts: Sequence[int]) -> Iterator[tuple[str, Text]]:
    """A line for each power of two, from the first that has prompts."""
    most = max(counts)
    first = next(power for power, count in enumerate(counts) if count)
    for power in range(first, len(counts)):
        length = -(-counts[power] * _BAR_COLUMNS // most)
        bar = Text("█" * length, "cyan").append(f" {counts[power]:,}", "default")
        yield f"{1 << power:,} to {(2 << power) - 1:,}", bar


def _shared_memory(estimate: Estimate) -> str:
    needed = f"up to {decimal(estimate.dump_bytes)} for each prompt in flight"
    server = estimate.server
    if server is None:
        return needed
    if server.free_bytes is None:
        return f"{needed}, in {server.dumps} on {server.host}"
    num_fitting = server.free_bytes // estimate.dump_bytes
    free = f"{server.dumps} has {decimal(server.free_bytes)} free"
    return f"{needed}; {free}, room for {counted(num_fitting, 'such prompt')}"


def _time(record: RunRecord, estimate: Estimate) -> str:
    if estimate.server is None:
        return "unknown; give --server to have its rate measured"
    rate = estimate.server.rate
    prompts = counted(rate.num_prompts, "prompt")
    return (
        f"{duration(record.counts.num_tokens / rate.tokens_per_s)} on one such server, which "
        f"computed {prompts} at {rate.tokens_per_s:,.0f} tokens/s just now"
    )
