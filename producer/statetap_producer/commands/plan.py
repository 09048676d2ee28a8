"""The command ``plan``, and what ``enqueue`` takes from it."""
# ruff: noqa: PLC0415 - see the package

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from statetap_contract import UsageError

from statetap_producer.commands.options import ModelOption, RunOption

ServerOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Take layers, dtype and norm from this running server."),
]
LayersOption = Annotated[
    str | None, typer.Option(metavar="K,K,K", help="Layers to capture, as boundary indices.")
]
DtypeOption = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="bfloat16, float16 or float32.")
]
NormOption = Annotated[
    Literal["post", "pre"] | None,
    typer.Option(help="Last hidden state after the final norm, or before it."),
]
MaxTokensOption = Annotated[
    int | None, typer.Option(metavar="N", help="Leave longer conversations out.")
]


def plan(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="JSONL of conversations.")],
    run: RunOption,
    model: ModelOption,
    *,
    server: ServerOption = None,
    layers: LayersOption = None,
    dtype: DtypeOption = None,
    norm: NormOption = None,
    max_tokens: MaxTokensOption = None,
) -> None:
    """Tokenise a dataset and write the plan of a run."""
    make_and_show_plan(dataset, run, model, server, layers, dtype, norm, max_tokens)


def make_and_show_plan(
    dataset: Path,
    run: Path,
    model: Path,
    server: str | None,
    layers: str | None,
    dtype: str | None,
    norm: str | None,
    max_tokens: int | None,
) -> None:
    """Plans, and shows the plan."""
    from statetap_producer.make_plan import PlanRequest, make_plan
    from statetap_producer.plan_view import plan_table
    from statetap_producer.progress import bytes_progress
    from statetap_producer.run_folder import RunFolder
    from statetap_producer.settle_spec import SpecWish

    wish = SpecWish(server, None if layers is None else _layers_in(layers), dtype, norm)
    request = PlanRequest(dataset, RunFolder(run), model, wish, max_tokens)
    num_bytes = dataset.stat().st_size if dataset.is_file() else 0
    with bytes_progress("planning", num_bytes) as on_progress:
        outcome = make_plan(request, on_progress)
    console = Console()
    if not outcome.is_new:
        console.print("The run holds this very plan already.")
    console.print(plan_table(outcome))


def _layers_in(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise UsageError(
            "layers-unreadable", f"--layers {text!r} must look like 2,15,27"
        ) from error
