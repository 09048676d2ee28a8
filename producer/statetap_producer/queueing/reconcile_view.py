"""How a round of ``reconcile`` looks."""

from rich.table import Table
from rich.text import Text

from statetap_producer.queueing.reconcile import ReconcileOutcome
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.fact_table import fact_table


def round_view(outcome: ReconcileOutcome) -> Table:
    """What was found and done, for a terminal."""
    numbers = outcome.numbers
    table = fact_table(f"run {numbers.run}")
    for name, number in (
        ("planned", numbers.planned),
        ("stored", numbers.stored),
        ("dead", numbers.dead),
    ):
        table.add_row(name, f"{number:,}")
    for kind, number in numbers.dead_by_kind.items():
        table.add_row(Text(f"  {kind}"), f"{number:,}")
    table.add_row("queued", f"{numbers.queued or 0:,}")
    table.add_row("in flight", f"{numbers.in_flight or 0:,}")
    table.add_row("missing", f"{numbers.missing or 0:,}")
    table.add_row("  enqueued now", f"[green]{outcome.num_enqueued:,}[/]")
    if outcome.num_beyond_window:
        table.add_row("  for the next round", f"{outcome.num_beyond_window:,}, the queue is full")
    if outcome.num_held_back:
        table.add_row("  held back", Text(_silence(outcome)))
    for sentence in numbers.unreadable_shards:
        table.add_row("cannot be read", Text(sentence))
    return table


def round_line(outcome: ReconcileOutcome) -> str:
    """The same in one line, for a log."""
    numbers = outcome.numbers
    parts = [
        f"{numbers.stored:,} of {numbers.planned:,} stored",
        f"{numbers.dead:,} dead",
        f"{numbers.queued or 0:,} queued",
        f"{numbers.in_flight or 0:,} in flight",
        f"{outcome.num_enqueued:,} enqueued",
    ]
    if outcome.num_beyond_window:
        parts.append(f"{outcome.num_beyond_window:,} for the next round")
    if outcome.num_held_back:
        parts.append(f"held back {_silence(outcome)}")
    if numbers.unreadable_shards:
        parts.append(f"{counted(len(numbers.unreadable_shards), 'shard')} cannot be read")
    return ", ".join(parts)


def _silence(outcome: ReconcileOutcome) -> str:
    """Why nothing was enqueued."""
    silent = " --without ".join(outcome.silent_workers)
    return (
        f"{outcome.num_held_back:,}: nothing was heard from {', '.join(outcome.silent_workers)}, "
        f"who may hold them; start it, or add --without {silent}"
    )
