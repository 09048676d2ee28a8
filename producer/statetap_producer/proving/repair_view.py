"""How a repair looks in a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.progress import DownloadColumn
from rich.table import Table
from rich.text import Text

from statetap_producer.proving.fault_view import fault_lines
from statetap_producer.proving.repair import OnShardProgress, RepairOutcome
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.progress import progress_bar


@contextmanager
def repair_progress() -> Iterator[OnShardProgress]:
    """A bar over the shard that is being read."""
    with progress_bar(DownloadColumn(), is_kept=False) as progress:
        task = progress.add_task("checking", total=None)
        yield lambda shard, done, total: progress.update(
            task, description=f"checking {shard.name}", completed=done, total=total
        )


def repair_view(outcome: RepairOutcome) -> RenderableType:
    """A line a shard, what was done, what is lost, and how to get it back."""
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("shard", overflow="fold")
    for name in ("samples", "mended", "lost"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for report in outcome.reports:
        table.add_row(
            Text(report.path.name),
            f"{report.num_samples:,}",
            f"{len(report.mended):,}",
            f"[red]{len(report.lost):,}[/]" if report.lost else "0",
            "[green]intact[/]" if report.is_intact else "[red]not repaired[/]",
        )
    mended = [fault for report in outcome.reports for fault in report.mended]
    left = [fault for report in outcome.reports for fault in report.left]
    return Group(
        table,
        *fault_lines(mended, "green"),
        *fault_lines(outcome.lost, "red"),
        *fault_lines(left, "red"),
        _summary(outcome),
    )


def _summary(outcome: RepairOutcome) -> Text:
    shards = counted(len(outcome.reports), "shard")
    if not outcome.is_good:
        num_broken = sum(not report.is_intact for report in outcome.reports)
        verdict = Text(f"{num_broken} of {shards} could not be repaired", "bold red")
    elif outcome.lost:
        verdict = Text(f"{shards} intact, {counted(len(outcome.lost), 'sample')} lost", "bold")
    else:
        verdict = Text(f"{shards} intact, nothing lost", "bold green")
    if outcome.lost:
        folders = map(str, outcome.runs or ("DIR",))
        commands = ", ".join(f"statetap enqueue --run {folder}" for folder in folders)
        verdict.append(f"\nTo extract what is lost anew: {commands}", "not bold default")
    return verdict


def repair_json(outcome: RepairOutcome) -> dict[str, object]:
    """The whole outcome as a JSON object."""
    return {
        "is_good": outcome.is_good,
        "shards": [
            {
                "path": str(report.path),
                "num_samples": report.num_samples,
                "mended": [asdict(fault) for fault in report.mended],
                "lost": [asdict(fault) for fault in report.lost],
                "left": [asdict(fault) for fault in report.left],
            }
            for report in outcome.reports
        ],
        "lost_keys": [fault.key for fault in outcome.lost],
    }
