"""The command ``status``."""
# ruff: noqa: PLC0415 - see the package

import dataclasses
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
        print_json(dataclasses.asdict(numbers) | counts)
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
