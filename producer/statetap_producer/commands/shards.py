"""Commands on shards: verify, seal, inspect, repair, merge."""
# ruff: noqa: PLC0415 - see the package

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from statetap_contract import MissingError, StatetapError

from statetap_producer.commands.options import JsonOption, ShardPaths
from statetap_producer.commands.output import print_json
from statetap_producer.terminal.counted import counted


def prove(
    paths: ShardPaths,
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Leave the payloads alone.")] = False,
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Share the work; else all cores take part."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove every byte of shards, and runs against their plans."""
    from statetap_producer.proving.verify import verify
    from statetap_producer.proving.verify_view import verdict_json, verdict_view
    from statetap_producer.terminal.progress import rate_progress

    num_processes = processes or len(os.sched_getaffinity(0))
    with rate_progress("verifying") as on_progress:
        verdict = verify(paths, quick=quick, num_processes=num_processes, on_progress=on_progress)
    if as_json:
        print_json(verdict_json(verdict))
    else:
        Console().print(verdict_view(verdict))
    if not verdict.is_good:
        raise typer.Exit(1)


def seal_shards(
    paths: ShardPaths,
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


def describe(
    paths: ShardPaths,
    *,
    as_json: JsonOption = False,
) -> None:
    """Show what is in shards: samples, lengths, origin, first rows."""
    from statetap_store import inspect_shards

    from statetap_producer.proving.inspect_view import inspection_json, inspection_view

    inspection = inspect_shards(_stored_shards(paths))
    if as_json:
        print_json(inspection_json(inspection))
    else:
        Console().print(inspection_view(inspection), highlight=False)
    if inspection.unreadable:
        raise typer.Exit(1)


def mend(
    paths: ShardPaths,
    *,
    as_json: JsonOption = False,
) -> None:
    """Put damaged shards right, and list the samples that are lost."""
    from statetap_producer.proving.repair import repair
    from statetap_producer.proving.repair_view import repair_json, repair_progress, repair_view

    with repair_progress() as on_progress:
        outcome = repair(paths, on_progress)
    if as_json:
        print_json(repair_json(outcome))
    else:
        Console().print(repair_view(outcome), highlight=False)
    if not outcome.is_good:
        raise typer.Exit(1)


def join(
    paths: ShardPaths,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The new shard.")],
) -> None:
    """Copy all samples, each once and proven, to one sealed shard."""
    from rich.filesize import decimal
    from statetap_store import merge_shards

    from statetap_producer.terminal.progress import rate_progress
    from statetap_producer.terminal.termination import exit_on_sigterm

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


def _stored_shards(paths: Sequence[Path]) -> list[Path]:
    """The shards that are meant; raises MissingError, kind ``no-shards``, where there are none."""
    from statetap_producer.run.run_folder import shards_at

    shards = shards_at(*paths)
    if not shards:
        where = ", ".join(map(str, paths))
        raise MissingError("no-shards", f"no sample was stored in {where} yet: start a worker")
    return shards
