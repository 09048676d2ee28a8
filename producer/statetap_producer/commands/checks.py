"""Commands that judge what others made: crosscheck, diagnose."""
# ruff: noqa: PLC0415 - see the package

import importlib.util
import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from statetap_contract import MissingError, UsageError

from statetap_producer.commands.options import JsonOption, ModelOption
from statetap_producer.commands.output import print_json


def compare(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A shard, a folder of them, or a run's.")
    ],
    model: ModelOption,
    *,
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Samples to compare.")] = 8,
    seed: Annotated[int, typer.Option(metavar="N", help="Chooses the samples.")] = 0,
    bound: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest error of any row; else the dtype's three bounds."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare stored states with HF transformers, and name the likely cause if they differ."""
    if importlib.util.find_spec("torch") is None:
        raise MissingError(
            "torch-missing", "crosscheck needs torch; install statetap-producer[crosscheck]"
        )
    from statetap_producer.proving.crosscheck import CrosscheckRequest, crosscheck
    from statetap_producer.proving.crosscheck_view import outcome_json, outcome_view
    from statetap_producer.terminal.progress import count_progress

    if bound is not None and not 0 < bound < math.inf:
        raise UsageError("bound-odd", f"--bound {bound:g} is no bound: give a number above 0")
    with count_progress("comparing", samples) as on_progress:
        outcome = crosscheck(CrosscheckRequest(path, model, samples, seed, bound), on_progress)
    if as_json:
        print_json(outcome_json(outcome))
    else:
        Console().print(outcome_view(outcome))
    if not outcome.is_good:
        raise typer.Exit(1)


def judge_log(
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Output of an SGLang server; - is stdin.")
    ],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show from a server's log which dumps a directory scan gets wrong."""
    from statetap_producer.diagnosing.diagnose import diagnose_log
    from statetap_producer.diagnosing.diagnose_view import findings_json, findings_view
    from statetap_producer.terminal.progress import bytes_progress

    num_bytes = log.stat().st_size if log.is_file() else 0
    with bytes_progress("reading", num_bytes) as on_progress:
        findings = diagnose_log(log, on_progress)
    if as_json:
        print_json(findings_json(findings))
    else:
        Console().print(findings_view(findings))
