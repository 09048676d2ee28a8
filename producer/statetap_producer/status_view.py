"""How a run that is under way looks in a terminal."""

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from rich.filesize import decimal
from rich.progress import TextColumn
from rich.table import Table
from rich.text import Text

from statetap_producer.counted import counted
from statetap_producer.fact_table import fact_table
from statetap_producer.progress import progress_bar
from statetap_producer.watch import Sighting

#: Seconds of the past that a rate is taken over.
_RATE_WINDOW_S: Final = 30.0


def status_table(sighting: Sighting) -> Table:
    """Where a run's prompts are."""
    numbers, queue = sighting.numbers, sighting.queue
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
    table.add_row("pending", f"{numbers.pending:,}")
    if queue is not None:
        table.add_row("  queued", f"{queue.num_queued:,}")
        table.add_row("  with workers", f"{queue.num_unacked:,}")
    return table


def show_watch(sightings: Iterable[Sighting]) -> Sighting:
    """A bar that follows a run; gives the last sighting."""
    rate = _Rate()
    with progress_bar(
        TextColumn("{task.fields[samples]}"),
        TextColumn("{task.fields[speed]}"),
        TextColumn("{task.fields[size]}"),
        is_kept=True,
    ) as progress:
        task = progress.add_task("", total=None, samples="", speed="", size="")
        for sighting in sightings:
            numbers = sighting.numbers
            dead = f" · [red]{numbers.dead:,} dead[/]" if numbers.dead else ""
            progress.update(
                task,
                description=numbers.run,
                total=numbers.planned,
                completed=numbers.stored + numbers.dead,
                samples=f"{numbers.stored:,}/{numbers.planned:,} samples{dead}",
                speed=f"{rate.per_second(numbers.stored_tokens):,.0f} tokens/s",
                size=decimal(numbers.stored_bytes),
            )
    return sighting


class _Rate:
    """Growth a second over the recent past."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, total: int) -> float:
        now = time.monotonic()
        self._seen.append((now, total))
        while now - self._seen[0][0] > _RATE_WINDOW_S:
            self._seen.popleft()
        begun, first = self._seen[0]
        return (total - first) / (now - begun) if now > begun else 0.0
