"""How answering a dataset looks: a bar in a terminal, lines in a log, a summary at the end."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.progress import DownloadColumn, TextColumn
from rich.text import Text

from statetap_producer.generating.generate import GenerateOutcome, GenerateProgress
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.progress import LogLines, progress_bar


@contextmanager
def generate_progress() -> Iterator[Callable[[GenerateProgress], None]]:
    """Gives a function that takes how far it is."""
    begun = time.monotonic()

    def words(now: GenerateProgress) -> str:
        tokens_per_s = now.num_tokens / max(time.monotonic() - begun, 1e-3)
        return f"{counted(now.num_rows, 'row')}, {tokens_per_s:,.0f} tokens/s"

    if not Console(stderr=True).is_terminal:
        latest = GenerateProgress()
        log = LogLines("answering", lambda _: words(latest))

        def show_line(now: GenerateProgress) -> None:
            nonlocal latest
            latest = now
            log(now.num_rows, None)

        yield show_line
        return
    with progress_bar(
        DownloadColumn(), TextColumn("{task.fields[words]}"), is_kept=False
    ) as progress:
        task = progress.add_task("answering", total=None, words="")
        yield lambda now: progress.update(
            task, completed=now.num_bytes_read, total=now.num_bytes, words=words(now)
        )


def generate_summary(outcome: GenerateOutcome, out: str) -> RenderableType:
    """What the file holds, and what was left out."""
    counts, progress = outcome.counts, outcome.progress
    if not outcome.is_new:
        return Text(f"{out} holds these very answers already, {counted(counts.num_rows, 'row')}.")
    lines = [f"{counted(counts.num_rows, 'row')} in {out}, answered by {outcome.model}"]
    if progress.num_rows_before:
        lines.append(f"{counted(progress.num_rows_before, 'row')} of an earlier call went into it")
    if counts.num_cut:
        lines.append(
            f"{counted(counts.num_cut, 'row')} with an answer that was cut at --max-new-tokens"
        )
    if counts.num_left_out:
        by_kind = ", ".join(
            f"{num_rows:,} {kind}" for kind, num_rows in progress.num_left_out.most_common()
        )
        lines.append(f"{counted(counts.num_left_out, 'row')} left out: {by_kind}")
    if counts.num_refused:
        lines.append(
            f"the same command asks again for {counted(counts.num_refused, 'row')} that the server "
            "did not answer"
        )
    faults = [f"  {fault}" for fault in progress.faults]
    if (num_unnamed := counts.num_left_out - len(faults)) > 0:
        faults.append(f"  and {num_unnamed:,} more")
    return Group(*map(Text, (*lines, *faults)))
