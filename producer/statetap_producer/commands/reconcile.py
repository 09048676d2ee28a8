"""Commands that put prompts back: reconcile, rerun."""
# ruff: noqa: PLC0415 - see the package

import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from statetap_contract import MissingError

from statetap_producer.commands.enqueue import feeding
from statetap_producer.commands.options import (
    DEFAULT_WINDOW,
    RedisOption,
    RunOption,
    WindowOption,
)
from statetap_producer.terminal.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from statetap_producer.queueing.reconcile import ReconcileOutcome

#: Kinds of errors that the next round may not meet.
_MENDED_BY_TIME: Final = ("redis-unreachable", "redis-full", "queue-taken", "folder-unreachable")


def put_back(
    run: RunOption,
    redis: RedisOption,
    *,
    every: Annotated[
        float | None,
        typer.Option(metavar="S", min=1, help="Go on every S seconds until nothing is pending."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="WORKER", help="Give this worker up: its disk is gone."),
    ] = None,
    window: WindowOption = DEFAULT_WINDOW,
) -> None:
    """Queue what was lost: prompts that are neither stored, dead nor queued."""
    from statetap_producer.queueing.reconcile import reconcile
    from statetap_producer.queueing.reconcile_view import round_view
    from statetap_producer.run.run_folder import RunFolder
    from statetap_producer.terminal.termination import exit_on_sigterm

    folder = RunFolder(run)

    given_up = list(without or ())

    def look() -> "ReconcileOutcome":
        outcome = reconcile(folder, redis, window=window, without=given_up)
        # Once is enough, and one that comes back later is welcome.
        given_up.clear()
        return outcome

    if every is None:
        Console().print(round_view(look()), highlight=False)
        return
    with exit_on_sigterm():
        outcome = _look_until_over(look, every)
    raise typer.Exit(1 if outcome.numbers.dead else 0)


def _look_until_over(look: "Callable[[], ReconcileOutcome]", every_s: float) -> "ReconcileOutcome":
    """Rounds with a line each, until nothing is pending; gives the last."""
    from statetap_producer.queueing.reconcile_view import round_line

    while True:
        try:
            outcome = look()
        except MissingError as error:
            # Redis may come back, and whoever fills the queue now will end.
            if error.kind not in _MENDED_BY_TIME:
                raise
            typer.echo(f"{_now()} {error}; trying again in {every_s:g} s")
        else:
            typer.echo(f"{_now()} {round_line(outcome)}")
            if outcome.is_over:
                return outcome
        time.sleep(every_s)


def pardon(
    run: RunOption,
    redis: RedisOption,
    *,
    reason: Annotated[
        list[str] | None,
        typer.Option(metavar="REASON", help="Samples that are dead for this reason."),
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="The sample of this key.")
    ] = None,
    window: WindowOption = DEFAULT_WINDOW,
) -> None:
    """Give dead letters another chance: all of them, or those chosen."""
    from statetap_producer.queueing.rerun import rerun
    from statetap_producer.run.run_folder import RunFolder

    with feeding("queueing", None, f"statetap enqueue --run {run}") as on_progress:
        outcome = rerun(
            RunFolder(run),
            redis,
            reasons=reason or (),
            samples=sample or (),
            window=window,
            on_progress=on_progress,
        )
    console = Console(highlight=False)
    num_pardoned = sum(outcome.pardoned.values())
    console.print(
        f"[bold]{counted(num_pardoned, 'dead letter')} pending again[/], "
        f"{outcome.num_enqueued:,} queued, {outcome.num_dead:,} dead"
    )
    for kind, number in outcome.pardoned.items():
        console.print(f"  {kind} {number:,}", markup=False)


def _now() -> str:
    return datetime.now().astimezone().isoformat(" ", "seconds")
