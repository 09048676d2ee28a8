"""The command ``export``."""
# ruff: noqa: PLC0415 - see the package

import importlib.util
import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from statetap_contract import MissingError

from statetap_producer.commands.options import JsonOption
from statetap_producer.commands.output import print_json


def write_files(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A shard, a folder of them, or a run's.")
    ],
    to: Annotated[
        Literal["specforge", "speculators", "modelopt", "angelslim"],
        typer.Option("--to", help="The trainer."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the export.")],
    *,
    model: Annotated[
        Path | None,
        typer.Option(metavar="MODEL_DIR", help="Folder of the model, where it is needed."),
    ] = None,
    val_fraction: Annotated[
        float, typer.Option(metavar="X", help="Share of samples for validation, by their keys.")
    ] = 0.0,
    draft_vocab_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Map the N tokens that are most often in the loss."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Share the work; else all cores take part."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write samples as the files that another trainer reads."""
    if importlib.util.find_spec("torch") is None:
        raise MissingError("torch-missing", "export needs torch; install statetap-producer[export]")
    from statetap_producer.exporting.export import export
    from statetap_producer.exporting.export_plan import ExportRequest, plan_export
    from statetap_producer.exporting.export_view import (
        export_json,
        export_outcome_view,
        export_plan_view,
    )
    from statetap_producer.exporting.formats import FORMATS
    from statetap_producer.terminal.progress import rate_progress
    from statetap_producer.terminal.termination import exit_on_sigterm

    request = ExportRequest(path, FORMATS[to], out, model, val_fraction, draft_vocab_size)
    console = Console()
    with exit_on_sigterm():
        with rate_progress("counting tokens") as on_count:
            plan = plan_export(request, on_count)
        if not as_json:
            console.print(export_plan_view(plan))
        num_processes = processes or len(os.sched_getaffinity(0))
        with rate_progress("exporting") as on_progress:
            outcome = export(plan, num_processes=num_processes, on_progress=on_progress)
    if as_json:
        print_json(export_json(plan, outcome))
    else:
        console.print(export_outcome_view(plan, outcome))
