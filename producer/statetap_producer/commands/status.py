"""The command ``status``."""
# ruff: noqa: PLC0415 - see the package

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from statetap_contract import CheckError, MissingError

from statetap_producer.commands.options import JsonOption, OptionalRedisOption, RunOption
from statetap_producer.commands.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from statetap_producer.queueing.watch import Lookout, Sighting


def status(
    run: RunOption,
    *,
    redis: OptionalRedisOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where prompts are, how fast they move, and who stores them."""
    lookout = _lookout(run, redis)
    if watch:
        sighting, exit_code = _watched(lookout)
    else:
        sighting, exit_code = lookout.look(), 0
    _show(sighting, as_json=as_json)
    if exit_code:
        raise typer.Exit(exit_code)
    numbers = sighting.numbers
    if sighting.is_stalled:
        raise CheckError(
            "run-stalled",
            f"{numbers.pending:,} prompts are neither stored nor queued; run: statetap reconcile "
            f"--run {run}",
        )
    if watch and numbers.dead:
        raise typer.Exit(1)


def _lookout(run: Path, redis: str | None) -> "Lookout":
    """Without a Redis that answers, the files alone are looked at."""
    from statetap_producer.queueing.broker import Broker
    from statetap_producer.queueing.watch import Lookout
    from statetap_producer.run.run_folder import RunFolder

    folder = RunFolder(run)
    if redis is not None:
        try:
            return Lookout(folder, Broker(redis))
        except MissingError as error:
            if error.kind != "redis-unreachable":
                raise
            typer.echo(
                f"statetap: {error.message}; what follows is from the run's files alone", err=True
            )
    return Lookout(folder, None)


def _watched(lookout: "Lookout") -> "tuple[Sighting, int]":
    """The last sighting, and how the command ends where a signal ended the watch, else 0."""
    from statetap_producer.queueing.status_view import show_watch
    from statetap_producer.queueing.watch import watch as follow
    from statetap_producer.terminal.termination import exit_on_sigterm, stop_code

    last: Sighting | None = None

    def noted(sightings: "Iterable[Sighting]") -> "Iterator[Sighting]":
        nonlocal last
        for sighting in sightings:
            last = sighting
            yield sighting

    try:
        with exit_on_sigterm():
            return show_watch(noted(follow(lookout.look))), 0
    except (KeyboardInterrupt, SystemExit) as stop:
        if last is None:
            raise typer.Exit(stop_code(stop)) from None
        return last, stop_code(stop)


def _show(sighting: "Sighting", *, as_json: bool) -> None:
    from statetap_producer.queueing.status_view import status_json, status_view

    if as_json:
        print_json(status_json(sighting))
    else:
        Console().print(status_view(sighting), highlight=False)
    for sentence in sighting.numbers.unreadable_shards:
        typer.echo(f"statetap: {sentence}", err=True)
