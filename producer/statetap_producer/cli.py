"""The ``statetap`` command: reads the command line, calls one function, shows what it gives.

Stages are imported by the command that needs them: transformers alone takes seconds to import,
and ``statetap --help`` must not.
"""
# ruff: noqa: PLC0415 - see above

import dataclasses
import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from statetap_contract import CheckError, MissingError, StatetapError, UsageError

from statetap_producer.cli_errors import ErrorGroup
from statetap_producer.counted import counted

app = typer.Typer(
    cls=ErrorGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turns conversations into a verified dataset of hidden states.",
    epilog="Exit codes: 0 done, 1 the check failed, 2 wrong use, 3 something needed is not there.",
)


RunOption = Annotated[Path, typer.Option("--run", metavar="DIR", help="Folder of the run.")]
_REDIS = typer.Option(
    "--redis",
    # A password on a command line can be read by everyone on the host.
    envvar="STATETAP_REDIS",
    metavar="URL",
    help="redis://:PASSWORD@HOST:PORT/0",
)
RedisOption = Annotated[str, _REDIS]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, nothing else.")]
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


def main() -> None:
    """Entry point of the installed command."""
    app()


@app.command()
def plan(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="JSONL of conversations.")],
    run: RunOption,
    model: Annotated[Path, typer.Option(metavar="MODEL_DIR", help="Folder of the model.")],
    *,
    server: ServerOption = None,
    layers: LayersOption = None,
    dtype: DtypeOption = None,
    norm: NormOption = None,
    max_tokens: MaxTokensOption = None,
) -> None:
    """Tokenise a dataset and write the plan of a run."""
    _plan(dataset, run, model, server, layers, dtype, norm, max_tokens)


@app.command("enqueue")
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
        _plan(dataset, run, model, server, layers, dtype, norm, max_tokens)
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


@app.command()
def status(
    run: RunOption,
    *,
    redis: Annotated[str | None, _REDIS] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how many prompts are stored, dead and pending."""
    from statetap_producer.broker import Broker
    from statetap_producer.run_folder import RunFolder
    from statetap_producer.run_state import RunState
    from statetap_producer.status_view import show_watch, status_table
    from statetap_producer.watch import look
    from statetap_producer.watch import watch as follow

    broker = Broker(redis) if redis else None
    state = RunState(RunFolder(run))
    if not watch:
        sighting = look(state, broker)
    elif as_json:
        *_, sighting = follow(lambda: look(state, broker))
    else:
        sighting = show_watch(follow(lambda: look(state, broker)))
    numbers, queue = sighting.numbers, sighting.queue
    if as_json:
        counts = {
            "queued": queue.num_queued if queue else None,
            "unacked": queue.num_unacked if queue else None,
        }
        _print_json(dataclasses.asdict(numbers) | counts)
    else:
        Console().print(status_table(sighting))
    for sentence in numbers.unreadable_shards:
        typer.echo(f"statetap: {sentence}", err=True)
    if sighting.is_stalled:
        raise CheckError(
            "run-stalled",
            f"{numbers.pending:,} prompts are neither stored nor queued; run: statetap enqueue "
            f"--run {run}",
        )
    if watch and numbers.dead:
        raise typer.Exit(1)


@app.command("verify")
def prove(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Shards, or folders of shards or runs.", readable=False
        ),
    ],
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Leave the payloads alone.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Share the work; else all cores take part."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove every byte of shards, and runs against their plans."""
    from statetap_producer.progress import rate_progress
    from statetap_producer.verify import verify
    from statetap_producer.verify_view import verdict_json, verdict_view

    num_processes = processes or len(os.sched_getaffinity(0))
    with rate_progress("verifying") as on_progress:
        verdict = verify(paths, quick=quick, num_processes=num_processes, on_progress=on_progress)
    if as_json:
        _print_json(verdict_json(verdict))
    else:
        Console().print(verdict_view(verdict))
    if not verdict.is_good:
        raise typer.Exit(1)


@app.command("seal")
def seal_shards(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH", help="Shards, or folders of shards or runs.", readable=False
        ),
    ],
) -> None:
    """Cut finished shards to their content; no sample can be added after."""
    from rich.filesize import decimal
    from statetap_store import seal

    console = Console()
    failed: list[StatetapError] = []
    for shard in _stored_shards(paths):
        try:
            seal(shard)
        except StatetapError as error:
            typer.echo(f"statetap: {error}", err=True)
            failed.append(error)
        else:
            size = decimal(shard.stat().st_size)
            console.print(f"{shard.name} is sealed, {size}", highlight=False, markup=False)
    if failed:
        raise typer.Exit(failed[0].exit_code)


@app.command("inspect")
def describe(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Shards, or folders of shards or runs.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what is in shards: samples, lengths, origin, first rows."""
    from statetap_store import inspect_shards

    from statetap_producer.inspect_view import inspection_json, inspection_view

    inspection = inspect_shards(_stored_shards(paths))
    if as_json:
        _print_json(inspection_json(inspection))
    else:
        Console().print(inspection_view(inspection), highlight=False)
    if inspection.unreadable:
        raise typer.Exit(1)


@app.command("repair")
def mend(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Shards, or folders of shards or runs.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Put damaged shards right, and list the samples that are lost."""
    from statetap_producer.repair import repair
    from statetap_producer.repair_view import repair_json, repair_progress, repair_view

    with repair_progress() as on_progress:
        outcome = repair(paths, on_progress)
    if as_json:
        _print_json(repair_json(outcome))
    else:
        Console().print(repair_view(outcome), highlight=False)
    if not outcome.is_good:
        raise typer.Exit(1)


@app.command("merge")
def join(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", help="Shards, or folders of shards or runs.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new shard.")],
) -> None:
    """Copy all samples, each once and proven, to one sealed shard."""
    from rich.filesize import decimal
    from statetap_store import merge_shards

    from statetap_producer.progress import rate_progress
    from statetap_producer.termination import exit_on_sigterm

    shards = _stored_shards(paths)
    with exit_on_sigterm(), rate_progress("merging") as on_progress:
        report = merge_shards(shards, out, on_progress=on_progress)
    console = Console()
    size = decimal(out.stat().st_size)
    console.print(
        f"{counted(report.num_samples, 'sample')} of {counted(report.num_shards, 'shard')} "
        f"in {out}, {size}",
        highlight=False,
        markup=False,
    )
    if report.num_duplicates:
        others = counted(report.num_duplicates, "further sample")
        console.print(f"{others} left out, of keys that are in it", highlight=False)


@app.command("crosscheck")
def compare(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A shard, a folder of them, or a run's.")
    ],
    model: Annotated[Path, typer.Option(metavar="MODEL_DIR", help="Folder of the model.")],
    *,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Samples to compare.")] = 8,
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses the samples.")] = 0,
    bound: Annotated[
        float | None, typer.Option(metavar="X", help="Largest error; else the dtype's own.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare stored states with HF transformers, in float32."""
    if importlib.util.find_spec("torch") is None:
        raise MissingError(
            "torch-missing", "crosscheck needs torch; install statetap-producer[crosscheck]"
        )
    from statetap_producer.crosscheck import CrosscheckRequest, crosscheck
    from statetap_producer.crosscheck_view import outcome_json, outcome_view
    from statetap_producer.progress import count_progress

    with count_progress("comparing", samples) as on_progress:
        outcome = crosscheck(CrosscheckRequest(path, model, samples, seed, bound), on_progress)
    if as_json:
        _print_json(outcome_json(outcome))
    else:
        Console().print(outcome_view(outcome))
    if not outcome.is_good:
        raise typer.Exit(1)


@app.command("diagnose")
def judge_log(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Output of an SGLang server; - is stdin.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show from a server's log which dumps a directory scan gets wrong."""
    from statetap_producer.diagnose import diagnose_log
    from statetap_producer.diagnose_view import findings_json, findings_view
    from statetap_producer.progress import bytes_progress

    num_bytes = log.stat().st_size if log.is_file() else 0
    with bytes_progress("reading", num_bytes) as on_progress:
        findings = diagnose_log(log, on_progress)
    if as_json:
        _print_json(findings_json(findings))
    else:
        Console().print(findings_view(findings))


def _plan(
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


def _stored_shards(paths: Sequence[Path]) -> list[Path]:
    """The shards that are meant; raises MissingError, kind ``no-shards``, where there are none."""
    from statetap_producer.run_folder import shards_at

    shards = shards_at(*paths)
    if not shards:
        where = ", ".join(map(str, paths))
        raise MissingError("no-shards", f"no sample was stored in {where} yet: start a worker")
    return shards


def _layers_in(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(layer) for layer in text.split(","))
    except ValueError as error:
        raise UsageError(
            "layers-unreadable", f"--layers {text!r} must look like 2,15,27"
        ) from error


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))
