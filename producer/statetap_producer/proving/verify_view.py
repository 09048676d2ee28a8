"""How a verdict looks in a terminal."""

from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from statetap_producer.proving.fault_view import fault_lines
from statetap_producer.proving.verify import Verdict
from statetap_producer.terminal.counted import counted


def verdict_view(verdict: Verdict) -> RenderableType:
    """A line a shard, the faults, and the verdict last."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("shard", overflow="fold")
    for name in ("samples", "tokens", "size"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for report in verdict.reports:
        num_faults = len(report.faults)
        table.add_row(
            Text(report.path.name),
            f"{report.num_samples:,}",
            f"{report.num_tokens:,}",
            decimal(report.num_bytes),
            f"[red]{counted(num_faults, 'fault')}[/]" if num_faults else "[green]intact[/]",
        )
    lines = [*fault_lines(verdict.faults, "red")]
    if any(report.faults for report in verdict.reports):
        lines.append(Text("statetap repair puts right what can be, and names what is lost"))
    return Group(table, *lines, _summary(verdict))


def _summary(verdict: Verdict) -> Text:
    samples = counted(sum(report.num_samples for report in verdict.reports), "sample")
    shards = counted(len(verdict.reports), "shard")
    if verdict.is_good:
        return Text(f"{samples} in {shards}, all intact", "bold green")
    return Text(f"{counted(len(verdict.faults), 'fault')}, {samples} in {shards}", "bold red")


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """The whole verdict as a JSON object."""
    return {
        "is_good": verdict.is_good,
        "shards": [
            {
                "path": str(report.path),
                "num_samples": report.num_samples,
                "num_tokens": report.num_tokens,
                "num_bytes": report.num_bytes,
                "faults": [asdict(fault) for fault in report.faults],
            }
            for report in verdict.reports
        ],
        "run_faults": [asdict(fault) for fault in verdict.run_faults],
    }
