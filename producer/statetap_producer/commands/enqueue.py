"""The command ``enqueue``, and what others that fill the queue take from it."""
# ruff: noqa: PLC0415 - see the package

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from statetap_contract import UsageError

from statetap_producer.commands.options import (
    DEFAULT_WINDOW,
    RedisOption,
    RunOption,
    WindowOption,
)
from statetap_producer.commands.plan import (
    DtypeOption,
    LayersOption,
    MaxTokensOption,
    NormOption,
    ServerOption,
    make_and_show_plan,
    wish,
)
from statetap_producer.terminal.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from statetap_producer.queueing.feed import FeedProgress


def fill_queue(  # noqa: PLR0913  one for each option
    run: RunOption,
    redis: RedisOption,
    dataset: Annotated[
        str | None, typer.Argument(metavar="DATASET", help="Plan this dataset first.")
    ] = None,
    *,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL_DIR", help="Folder of the model, to plan with.")
    ] = None,
    server: ServerOption = None,
    layers: LayersOption = None,
    dtype: DtypeOption = None,
    norm: NormOption = None,
    max_tokens: MaxTokensOption = None,
    window: WindowOption = DEFAULT_WINDOW,
    order: Annotated[
        Literal["plan", "longest", "shortest"], typer.Option(help="Which prompts come first.")
    ] = "plan",
) -> None:
    """Queue every prompt that is neither stored, dead nor queued."""
    from statetap_producer.queueing.enqueue import enqueue
    from statetap_producer.run.run_folder import RunFolder

    folder = RunFolder(run)
    if dataset is not None:
        if model is None:
            raise UsageError("model-not-given", "to plan a dataset, give --model MODEL_DIR too")
        # Seconds of imports, which those who have a plan need not wait for.
        from statetap_producer.planning.make_plan import PlanRequest

        make_and_show_plan(
            PlanRequest(dataset, folder, model, wish(server, layers, dtype, norm), max_tokens)
        )
    num_planned = folder.read_record().counts.num_planned
    with feeding("queueing", num_planned, f"statetap enqueue --run {run}") as on_progress:
        outcome = enqueue(folder, redis, window=window, order=order, on_progress=on_progress)
    console = Console()
    console.print(
        f"[bold]{counted(outcome.num_enqueued, 'prompt')} queued[/], {outcome.num_stored:,} "
        f"already stored, {outcome.num_dead:,} dead"
    )
    if outcome.num_queued_before:
        console.print(f"{counted(outcome.num_queued_before, 'prompt')} left out: already queued")


@contextmanager
def feeding(
    label: str, total: int | None, command: str
) -> "Iterator[Callable[[FeedProgress], None]]":
    """Shows how the queue is filled; stopped in the middle, says that ``command`` goes on."""
    from statetap_producer.queueing.feed_view import feed_progress
    from statetap_producer.terminal.termination import exit_on_sigterm, stop_code

    num_enqueued = 0

    def note(now: "FeedProgress") -> None:
        nonlocal num_enqueued
        num_enqueued = now.num_enqueued
        show(now)

    try:
        with exit_on_sigterm(), feed_progress(label, total) as show:
            yield note
    except (KeyboardInterrupt, SystemExit) as stop:
        typer.echo(
            f"statetap: stopped with {counted(num_enqueued, 'prompt')} queued; to go on, run: "
            f"{command}",
            err=True,
        )
        raise typer.Exit(stop_code(stop)) from None
