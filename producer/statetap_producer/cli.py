"""The ``statetap`` command: which commands there are. What they do is in ``commands/``."""

import typer

from statetap_producer.cli_errors import ErrorGroup
from statetap_producer.commands import checks, enqueue, plan, shards, status

app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turns conversations into a verified dataset of hidden states.",
    epilog="Exit codes: 0 done, 1 the check failed, 2 wrong use, 3 something needed is not there.",
)

app.command("plan")(plan.plan)
app.command("enqueue")(enqueue.fill_queue)
app.command("status")(status.status)
app.command("verify")(shards.prove)
app.command("seal")(shards.seal_shards)
app.command("inspect")(shards.describe)
app.command("repair")(shards.mend)
app.command("merge")(shards.join)
app.command("crosscheck")(checks.compare)
app.command("diagnose")(checks.judge_log)


def main() -> None:
    """Entry point of the installed command."""
    app()
