"""The ``statetap`` command: which commands there are. What they do is in ``commands/``."""

import io
import sys
from collections.abc import Callable

import typer

from statetap_producer.cli_errors import ErrorGroup
from statetap_producer.commands import (
    checks,
    enqueue,
    export,
    generate,
    plan,
    reconcile,
    report,
    shards,
    status,
)

app = typer.Typer(
    cls=ErrorGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Turns conversations into a verified dataset of hidden states.",
    epilog="Exit codes: 0 done, 1 the check failed, 2 wrong use, 3 something needed is not there.",
)


def _add(name: str, command: Callable[..., None], *examples: str) -> None:
    """Registers a command. Each paragraph of an epilog is a line of its own."""
    app.command(name, epilog="\n\n".join(("Examples", *examples)))(command)


_add(
    "plan",
    plan.plan,
    "statetap plan chats.jsonl --run runs/mine --model /models/m --server http://127.0.0.1:30000",
    "statetap plan data/ --run runs/mine --model /models/m --max-tokens 2048 --cut",
    "statetap plan hf:OWNER/NAME --run runs/mine --model /models/m --layers 2,18,33",
)
_add(
    "generate",
    generate.answer,
    "statetap generate chats.jsonl --out answered.jsonl --server http://127.0.0.1:30000",
    "statetap generate chats.jsonl --out own.jsonl --server http://127.0.0.1:30000 --replace",
)
_add(
    "enqueue",
    enqueue.fill_queue,
    "statetap enqueue --run runs/mine",
    "statetap enqueue --run runs/mine --order longest --window 2000",
)
_add(
    "reconcile",
    reconcile.put_back,
    "statetap reconcile --run runs/mine",
    "statetap reconcile --run runs/mine --every 60",
)
_add(
    "rerun",
    reconcile.pardon,
    "statetap rerun --run runs/mine --reason worker-lost --reason mismatch",
    "statetap rerun --run runs/mine --sample 0123456789abcdef0123456789abcdef",
)
_add(
    "status",
    status.status,
    "statetap status --run runs/mine --watch",
    "statetap status --run runs/mine --json",
)
_add(
    "verify",
    shards.prove,
    "statetap verify runs/mine",
    "statetap verify /backup/*.h5 --quick --json",
)
_add("seal", shards.seal_shards, "statetap seal runs/mine")
_add("inspect", shards.describe, "statetap inspect runs/mine/shards/w-00-00001.h5")
_add("repair", shards.mend, "statetap repair runs/mine")
_add("merge", shards.join, "statetap merge runs/mine --out mine.h5")
_add(
    "export",
    export.write_files,
    "statetap export runs/mine --to specforge --out mine-specforge --val-fraction 0.05",
    "statetap export runs/mine --to speculators --out mine-speculators --model /models/m",
    "statetap export runs/mine --to angelslim --out mine-angelslim --model /models/m "
    "--draft-vocab-size 32000",
)
_add(
    "crosscheck",
    checks.compare,
    "statetap crosscheck runs/mine --model /models/m --samples 32 --seed 7",
)
_add(
    "report",
    report.tell,
    "statetap report --run runs/mine --out runs/mine/report.html",
    "statetap report --run runs/mine --out mine.html --samples 256 --seed 7 --json",
)
_add(
    "diagnose",
    checks.judge_log,
    "statetap diagnose server.log",
    "docker logs sglang 2>&1 | statetap diagnose -",
)


def main() -> None:
    """Entry point of the installed command."""
    # Names and contents of people's data go where they can be written, whatever the locale.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()
