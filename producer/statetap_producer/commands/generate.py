"""The command ``generate``."""
# ruff: noqa: PLC0415 - see the package

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from statetap_producer.commands.plan import DatasetArgument
from statetap_producer.terminal.counted import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from statetap_producer.generating.generate import GenerateProgress


def answer(  # noqa: PLR0913  one for each option
    dataset: DatasetArgument,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="JSONL, for statetap plan.")],
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="Server of the target model.")
    ],
    *,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model, where the server has several.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Ask anew for every turn of the assistant.")
    ] = False,
    max_new_tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most tokens of one answer.")
    ] = 2048,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T", min=0, max=2, help="0 for the likeliest answer; else the model's own."
        ),
    ] = None,
    in_flight: Annotated[
        int, typer.Option(metavar="N", min=1, help="Conversations at the server at a time.")
    ] = 64,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that would be left out.")
    ] = False,
) -> None:
    """Have the target model answer conversations: what is missing, or all."""
    from statetap_producer.generating.chat_client import Sampling
    from statetap_producer.generating.generate import GenerateRequest, generate
    from statetap_producer.generating.generate_view import generate_summary

    request = GenerateRequest(
        dataset=dataset,
        out=out,
        server=server,
        model=model,
        sampling=Sampling(max_new_tokens, temperature),
        is_replacing=replace,
        num_in_flight=in_flight,
        is_strict=strict,
    )
    with _answering() as on_progress:
        outcome = generate(request, on_progress)
    Console().print(generate_summary(outcome, str(out)), highlight=False, soft_wrap=True)


@contextmanager
def _answering() -> "Iterator[Callable[[GenerateProgress], None]]":
    """Shows how far it is; stopped in the middle, says how to go on."""
    from statetap_producer.generating.generate_view import generate_progress
    from statetap_producer.terminal.termination import exit_on_sigterm, stop_code

    num_rows = 0

    def note(now: "GenerateProgress") -> None:
        nonlocal num_rows
        num_rows = now.num_rows
        show(now)

    try:
        with exit_on_sigterm(), generate_progress() as show:
            yield note
    except (KeyboardInterrupt, SystemExit) as stop:
        typer.echo(
            f"statetap: stopped with {counted(num_rows, 'row')} answered; the same command goes on",
            err=True,
        )
        raise typer.Exit(stop_code(stop)) from None
