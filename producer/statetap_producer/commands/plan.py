"""The command ``plan``, and what ``enqueue`` takes from it."""
# ruff: noqa: PLC0415 - see the package

from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from statetap_contract import UsageError

from statetap_producer.commands.options import JsonOption, ModelOption, RunOption
from statetap_producer.commands.output import print_json

if TYPE_CHECKING:
    from statetap_producer.planning.make_plan import PlanRequest
    from statetap_producer.planning.settle_spec import SpecWish

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="JSONL, JSON or Parquet, a folder of them, a datasets folder, or hf:OWNER/NAME.",
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="Take layers, dtype and norm from this server, and measure its rate."
    ),
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
MaxTokensOption = Annotated[int | None, typer.Option(metavar="N", help="Leave longer prompts out.")]


def plan(  # noqa: PLR0913  one for each option
    dataset: DatasetArgument,
    run: RunOption,
    model: ModelOption,
    *,
    server: ServerOption = None,
    layers: LayersOption = None,
    dtype: DtypeOption = None,
    norm: NormOption = None,
    max_tokens: MaxTokensOption = None,
    cut: Annotated[
        bool, typer.Option("--cut", help="Cut longer prompts to their first tokens instead.")
    ] = False,
    allow_empty_mask: Annotated[
        bool, typer.Option("--allow-empty-mask", help="Take prompts without any loss.")
    ] = False,
    allow_full_mask: Annotated[
        bool, typer.Option("--allow-full-mask", help="Take prompts with loss on every token.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that would be left out.")
    ] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Shards lie on other disks: ask for no room here.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Tokenise a dataset, write the plan of a run, say what it takes."""
    from statetap_producer.planning.make_plan import PlanRequest
    from statetap_producer.run.run_folder import RunFolder

    request = PlanRequest(
        dataset=dataset,
        run=RunFolder(run),
        model=model,
        wish=wish(server, layers, dtype, norm),
        max_tokens=max_tokens,
        is_cut=cut,
        allows_empty_mask=allow_empty_mask,
        allows_full_mask=allow_full_mask,
        is_strict=strict,
        is_elsewhere=elsewhere,
    )
    make_and_show_plan(request, as_json=as_json)


def make_and_show_plan(request: "PlanRequest", *, as_json: bool = False) -> None:
    """Plans, measures the server where there is one, and shows the plan."""
    from statetap_producer.planning.estimate import estimate
    from statetap_producer.planning.make_plan import make_plan
    from statetap_producer.planning.plan_view import plan_json, plan_table
    from statetap_producer.terminal.progress import rate_progress
    from statetap_producer.terminal.termination import exit_on_sigterm

    with exit_on_sigterm(), rate_progress("planning") as on_progress:
        outcome = make_plan(request, on_progress)
    server = request.wish.server
    with Console(stderr=True).status(f"measuring the rate of {server}" if server else ""):
        needs = estimate(request.run, outcome.record, server, outcome.capture)
    if as_json:
        print_json(plan_json(outcome.record, needs))
        return
    console = Console()
    if not outcome.is_new:
        console.print("The run holds this very plan already.")
    console.print(plan_table(outcome.record, needs))


def wish(server: str | None, layers: str | None, dtype: str | None, norm: str | None) -> "SpecWish":
    """What a person asks to be captured, as the options say it."""
    from statetap_producer.planning.settle_spec import SpecWish

    return SpecWish(server, None if layers is None else _layers_in(layers), dtype, norm)


def _layers_in(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise UsageError(
            "layers-unreadable", f"--layers {text!r} must look like 2,15,27"
        ) from error
