"""The command ``status``."""
# ruff: noqa: PLC0415 - see the package

from typing import Annotated

import typer
from rich.console import Console
from statetap_contract import CheckError

from statetap_producer.commands.options import JsonOption, OptionalRedisOption, RunOption
from statetap_producer.commands.output import print_json


def status(
    run: RunOption,
    *,
    redis: OptionalRedisOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where prompts are, how fast they move, and who stores them."""
    from statetap_producer.queueing.broker import Broker
    from statetap_producer.queueing.status_view import show_watch, status_json, status_view
    from statetap_producer.queueing.watch import Lookout
    from statetap_producer.queueing.watch import watch as follow
    from statetap_producer.run.run_folder import RunFolder

    lookout = Lookout(RunFolder(run), Broker(redis) if redis else None)
    sighting = show_watch(follow(lookout.look)) if watch else lookout.look()
    numbers = sighting.numbers
    if as_json:
        print_json(status_json(sighting))
    else:
        Console().print(status_view(sighting), highlight=False)
    for sentence in numbers.unreadable_shards:
        typer.echo(f"statetap: {sentence}", err=True)
    if sighting.is_stalled:
        raise CheckError(
            "run-stalled",
            f"{numbers.pending:,} prompts are neither stored nor queued; run: statetap reconcile "
            f"--run {run}",
        )
    if watch and numbers.dead:
        raise typer.Exit(1)
