"""What one hypothesis makes of one slot, and which of several explains it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.layer_source import LayerSource
from statetap_producer.proving.compared_sample import JudgedSample
from statetap_producer.proving.row_bounds import RowBounds, RowErrors

#: An earlier hypothesis is preferred to one that leaves a little less: this many times the least
#: error, and this share of the bound on the middle row.
_SLACK_TIMES: Final = 1.5
_SLACK_SHARE: Final = 0.25

#: The share of the bad rows' mean error that an explanation may leave, at most.
_MOST_LEFT: Final = 0.5

#: The share of the bad rows of which an explanation must say something.
_LEAST_COVERED: Final = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """What is left of the rows' errors if a cause is the one."""

    #: The cause, or the layer that the slot holds; what to call that depends on the other slots.
    cause: Cause | LayerSource
    #: float64 [n], in the measure of the bounds.
    errors: torch.Tensor
    #: Bool [n], the rows of which it says anything; None for all.
    covered: torch.Tensor | None = None
    #: The bounds to keep where they are not those of the sample's dtype; rows that are right as
    #: they are do not count then.
    bounds: RowBounds | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """The cause of one slot's errors, and what it leaves of them."""

    cause: Cause | LayerSource
    left: RowErrors


def best(sample: JudgedSample, slot: int, explanations: Iterable[Explanation]) -> Finding | None:
    """The first explanation that leaves hardly more than the one that leaves least.

    None of them counts that does not bring the slot within bounds.
    """
    weighed = [
        weight
        for explanation in explanations
        if (weight := _weigh(sample, slot, explanation)) is not None
    ]
    if not weighed:
        return None
    enough = min(share for share, _ in weighed) * _SLACK_TIMES + _SLACK_SHARE
    return next(finding for share, finding in weighed if share <= enough)


def _weigh(
    sample: JudgedSample, slot: int, explanation: Explanation
) -> tuple[float, Finding] | None:
    """What is left as a share of the bound, if within; None where nothing is explained by it.

    Rows are right as they are stored, or as the cause has it.
    """
    bad = sample.bad_rows(slot)
    covered = explanation.covered
    if covered is None:
        covered = torch.ones_like(bad)
    if int((bad & covered).sum()) < _LEAST_COVERED * int(bad.sum()):
        return None
    if explanation.bounds is None:
        bounds = sample.bounds
        errors = torch.fmin(sample.errors[slot], explanation.errors)
    else:
        bounds, errors = explanation.bounds, explanation.errors
    errors = errors[covered]
    if not len(errors) or not bounds.are_kept_by(errors):
        return None
    left = float(errors[bad[covered]].mean())
    before = float(sample.errors[slot][bad].nan_to_num(torch.inf).mean())
    if explanation.bounds is None and left > _MOST_LEFT * before:
        return None
    share = left / bounds.middle
    return share, Finding(explanation.cause, RowErrors.of(errors))
