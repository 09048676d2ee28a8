"""Commands that fill the queue: enqueue."""
# ruff: noqa: PLC0415 - see the package

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from statetap_contract import UsageError

from statetap_producer.commands.options import RedisOption, RunOption
from statetap_producer.commands.plan import (
    DtypeOption,
    LayersOption,
    MaxTokensOption,
    NormOption,
    ServerOption,
    make_and_show_plan,
)
from statetap_producer.counted import counted


def fill_queue(  # noqa: PLR0913  one for each option
    run: RunOption,
    redis: RedisOption,
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="Plan this dataset first.")
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
) -> None:
    """Queue every prompt that is neither stored nor dead."""
    from statetap_producer.enqueue import enqueue
    from statetap_producer.progress import count_progress
    from statetap_producer.run_folder import RunFolder

    if dataset is not None:
        if model is None:
            raise UsageError("model-not-given", "to plan a dataset, give --model MODEL_DIR too")
        make_and_show_plan(dataset, run, model, server, layers, dtype, norm, max_tokens)
    folder = RunFolder(run)
    num_planned = folder.read_record().counts.num_planned
    with count_progress("queueing", num_planned) as on_progress:
        outcome = enqueue(folder, redis, on_progress)
    console = Console()
    console.print(
        f"[bold]{counted(outcome.num_enqueued, 'prompt')} queued[/], {outcome.num_stored:,} "
        f"already stored, {outcome.num_dead:,} dead"
    )
    if outcome.num_queued_before:
        held = counted(outcome.num_queued_before, "message")
        console.print(
            f"The queue already held {held}; a prompt that is queued twice is stored once."
        )
