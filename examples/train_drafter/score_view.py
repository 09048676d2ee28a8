"""Scores as a table in a terminal."""

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from train_drafter.comparison import VariantScores
from train_drafter.held_out import CHAIN


def score_table(results: Sequence[VariantScores]) -> Table:
    """A line a variant: means over the seeds, and how far the seeds are apart in agreement.

    The last columns are the tokens won by one pass of the target, with chains of 1 to 4 tokens.
    """
    table = Table(box=None, pad_edge=False, header_style="cyan")
    table.add_column("trained on")
    table.add_column("agreement", justify="right")
    table.add_column("seeds", justify="right")
    for length in range(1, CHAIN + 1):
        table.add_column("chain of 1" if length == 1 else f"{length}", justify="right")
    for result in results:
        agreements = result.agreements
        chains = zip(*(score.acceptance for score in result.scores), strict=True)
        table.add_row(
            result.variant.name,
            f"{fmean(agreements):.1%}",
            f"{min(agreements):.1%} to {max(agreements):.1%}",
            *(f"{fmean(lengths):.2f}" for lengths in chains),
        )
    return table
