"""The command ``report``."""
# ruff: noqa: PLC0415 - see the package

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from statetap_contract import MissingError

from statetap_producer.commands.options import JsonOption, OptionalRedisOption, RunOption
from statetap_producer.commands.output import print_json
from statetap_producer.terminal.counted import counted

if TYPE_CHECKING:
    from statetap_producer.queueing.broker import Broker


def tell(
    run: RunOption,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="The page; README.md goes beside it.")
    ],
    *,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="Samples of which the states are read.")
    ] = 64,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Chooses these samples.")] = 0,
    redis: OptionalRedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a page with plots on a run, and the card of its dataset."""
    from rich.filesize import decimal

    from statetap_producer.reporting.gather import gather
    from statetap_producer.reporting.report_facts import report_json
    from statetap_producer.reporting.write_report import refuse_out, write_report
    from statetap_producer.run.run_folder import RunFolder
    from statetap_producer.terminal.progress import count_progress

    folder = RunFolder(run)
    folder.read_record()
    refuse_out(out)
    broker = _broker(redis)
    with count_progress("reading states", samples) as on_progress:
        report = gather(folder, broker, num_samples=samples, seed=seed, on_progress=on_progress)
    card = write_report(report, out)
    if as_json:
        print_json(report_json(report))
    else:
        size = decimal(out.stat().st_size)
        Console().print(
            f"{out}, {size}, tells of {counted(report.numbers.stored, 'stored sample')}; the "
            f"dataset card is {card}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    for sentence in report.faults:
        typer.echo(f"statetap: {sentence}", err=True)
    if report.faults:
        raise typer.Exit(1)


def _broker(redis: str | None) -> "Broker | None":
    """Without a Redis that answers, the files alone are looked at."""
    from statetap_producer.queueing.broker import Broker

    if redis is None:
        return None
    try:
        return Broker(redis)
    except MissingError as error:
        if error.kind != "redis-unreachable":
            raise
        typer.echo(f"statetap: {error.message}; the report is of the run's files alone", err=True)
        return None
