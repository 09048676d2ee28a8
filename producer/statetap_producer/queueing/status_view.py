"""How a run that is under way looks: in a terminal, in a log, and to a script."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from statetap_producer.queueing.pace import Pace, SourcePace
from statetap_producer.queueing.run_state import RunNumbers
from statetap_producer.queueing.watch import Sighting
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.durations import duration
from statetap_producer.terminal.fact_table import fact_table
from statetap_producer.terminal.progress import LogLines

#: Rows of a table of writers; a terminal has no room for hundreds.
_MOST_ROWS: Final = 16


def status_view(sighting: Sighting) -> RenderableType:
    """Where a run's prompts are, how fast they move, and who stores them."""
    pace = sighting.pace
    parts: list[RenderableType] = [_facts(sighting)]
    if pace.writers:
        parts += [
            "",
            _sources("worker process", pace.writers),
            "",
            _sources("server host", pace.servers),
        ]
    return Group(*parts)


def status_json(sighting: Sighting) -> dict[str, object]:
    """What ``--json`` prints. Times are in seconds, sizes in bytes; null is what is not known.

    Counts of prompts, as ``RunNumbers`` has them::

        run                   name of the run
        planned               stored + dead + pending
        stored, dead          what became a sample, and what was given up
        pending               queued + in_flight + missing
        queued, in_flight     waits in the queue, is held by a worker; null without Redis
        missing               is nowhere: reconcile enqueues it; null without Redis
        planned_tokens        of all prompts
        stored_tokens         of all samples; stored_bytes is what they take in shards
        dead_by_kind          reason to number; dead_by_server likewise, by the URL asked last
        silent_workers        may hold samples of which nothing is known here
        unreadable_shards     one sentence each; their samples count as pending

    Rates, as ``Pace`` has them::

        tokens_per_s          over the last half minute, and bytes_per_s
        overall_tokens_per_s  from the first sample to the last, and overall_bytes_per_s
        left_s                until nothing is pending
        free_bytes            on the disk of the run
        disk_full_s           until that is full; null where the run ends before
        writers, servers      name, num_samples, num_tokens, tokens_per_s, last_sample_s (ago)

    And ``announced``, what workers say in Redis: name, host, num_samples, heard_s_ago, free_bytes
    (on its disk then); and ``is_stalled``: whether ``--watch`` ended because nobody works on what
    is pending.
    """
    return {
        **asdict(sighting.numbers),
        **asdict(sighting.pace),
        "announced": [asdict(worker) for worker in sighting.announced],
        "is_stalled": sighting.is_stalled,
    }


def show_watch(sightings: Iterable[Sighting]) -> Sighting:
    """Follows a run on stderr, live in a terminal, by lines in a log; gives the last sighting."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return _show_lines(sightings)
    with Live(console=console, transient=True, auto_refresh=False) as live:
        for sighting in sightings:
            live.update(Group(_bar(sighting.numbers), status_view(sighting)), refresh=True)
    return sighting


def status_line(sighting: Sighting) -> str:
    """The same in one line."""
    numbers, pace = sighting.numbers, sighting.pace
    parts = [
        f"{numbers.stored:,} of {numbers.planned:,} stored",
        f"{numbers.dead:,} dead",
        f"{numbers.pending:,} pending{_places(numbers)}",
        _rate(pace.tokens_per_s, pace.bytes_per_s),
    ]
    if pace.left_s is not None:
        parts.append(f"{duration(pace.left_s)} left")
    if pace.disk_full_s is not None:
        parts.append(f"disk full in {duration(pace.disk_full_s)}")
    return ", ".join(parts)


def _show_lines(sightings: Iterable[Sighting]) -> Sighting:
    seen: list[Sighting] = []
    lines: LogLines | None = None
    for sighting in sightings:
        seen[:] = [sighting]
        lines = lines or LogLines(sighting.numbers.run, lambda _: status_line(seen[0]))
        lines(sighting.numbers.stored, None)
    return sighting


def _bar(numbers: RunNumbers) -> Table:
    done = numbers.stored + numbers.dead
    table = Table.grid(padding=(0, 1))
    share = f"{done / numbers.planned:.0%}"
    table.add_row(ProgressBar(total=numbers.planned, completed=done, width=40), share)
    return table


def _facts(sighting: Sighting) -> Table:
    numbers, pace = sighting.numbers, sighting.pace
    table = fact_table(f"run {numbers.run}")
    table.add_row(
        "planned", f"{counted(numbers.planned, 'prompt')}, {numbers.planned_tokens:,} tokens"
    )
    table.add_row(
        "stored",
        f"[green]{counted(numbers.stored, 'sample')}[/], {numbers.stored_tokens:,} tokens, "
        f"{decimal(numbers.stored_bytes)}",
    )
    table.add_row("dead", f"[red]{numbers.dead:,}[/]" if numbers.dead else "0")
    for kind, num_dead in numbers.dead_by_kind.items():
        table.add_row(Text(f"  {kind}"), f"{num_dead:,}")
    if len(numbers.dead_by_server) > 1:
        for server, num_dead in numbers.dead_by_server.items():
            table.add_row(Text("  at"), Text(f"{server}: {num_dead:,}"))
    table.add_row("pending", f"{numbers.pending:,}{_places(numbers)}")
    for address in numbers.silent_workers:
        table.add_row("[red]silent[/]", Text(address))
    table.add_row("now", _rate(pace.tokens_per_s, pace.bytes_per_s))
    table.add_row("overall", _rate(pace.overall_tokens_per_s, pace.overall_bytes_per_s))
    if numbers.pending:
        left = "unknown" if pace.left_s is None else duration(pace.left_s)
        table.add_row("time left", left)
    table.add_row("disk", _disk(pace))
    for worker in sighting.announced:
        table.add_row(
            "announced",
            Text(
                f"{counted(worker.num_samples, 'sample')} by {worker.name}@{worker.host}, heard "
                f"{duration(worker.heard_s_ago)} ago, {decimal(worker.free_bytes)} free"
            ),
        )
    return table


def _places(numbers: RunNumbers) -> str:
    if numbers.queued is None:
        return ""
    return (
        f" ({numbers.queued:,} queued, {numbers.in_flight or 0:,} in flight, "
        f"{numbers.missing or 0:,} missing)"
    )


def _rate(tokens_per_s: float | None, bytes_per_s: float | None) -> str:
    if tokens_per_s is None or bytes_per_s is None:
        return "rate unknown"
    return f"{tokens_per_s:,.0f} tokens/s, {decimal(round(bytes_per_s))}/s"


def _disk(pace: Pace) -> str:
    free = f"{decimal(pace.free_bytes)} free"
    if pace.disk_full_s is None:
        return free
    return f"{free}, [red]full in {duration(pace.disk_full_s)}[/]"


def _sources(title: str, sources: Sequence[SourcePace]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column(title, overflow="ellipsis", no_wrap=True, max_width=32)
    for name in ("samples", "tokens", "tokens/s", "last sample"):
        table.add_column(name, justify="right", no_wrap=True)
    for source in sources[:_MOST_ROWS]:
        last = source.last_sample_s
        table.add_row(
            Text(source.name),
            f"{source.num_samples:,}",
            f"{source.num_tokens:,}",
            f"{source.tokens_per_s:,.0f}",
            "" if last is None else f"{duration(last)} ago",
        )
    if len(sources) > _MOST_ROWS:
        table.add_row(f"and {len(sources) - _MOST_ROWS:,} more")
    return table
