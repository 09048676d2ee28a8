"""Hypotheses about rows: that they are empty, or stand in the wrong place."""

from collections.abc import Iterator
from typing import Final

import torch
from torch.nn.functional import normalize

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation
from statetap_producer.proving.compared_sample import ComparedSample, JudgedSample
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.terminal.counted import counted

#: Rows by which a shift is found.
_NUM_PROBES: Final = 64

#: Rows that are compared with all others at a time, so that memory does not grow with the square.
_NEAREST_ROWS: Final = 256

#: Share of a prompt's rows that may be taken for others that are like them.
_LARGEST_ALIKE: Final = 0.1


def not_finite(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Rows with an element that is no finite number."""
    is_broken = ~compared.ours(slot).isfinite().all(dim=1)
    yield _of_rows("not-finite", "{} with elements that are no finite number", is_broken)


def zero_rows(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Rows of zeros."""
    is_zero = (compared.ours(slot) == 0).all(dim=1)
    yield _of_rows("zero-rows", "{} of zeros", is_zero)


def repeated_rows(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Rows that equal one another, bit by bit."""
    ours = compared.ours(slot)
    anchor = int(compared.bad_rows(slot).nonzero()[-1])
    is_same = (ours == ours[anchor]).all(dim=1)
    if int(is_same.sum()) > 1:
        yield _of_rows("rows-repeated", "{} that are all the same one", is_same)


def shifted_rows(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Rows of tokens that stand a fixed number before or after their own."""
    for offset in likely_offsets(compared, slot, compared.theirs[slot]):
        if offset:
            where = "before" if offset < 0 else "after"
            distance = "token" if abs(offset) == 1 else f"token {abs(offset)} places"
            cause = Cause("rows-shifted", f"each row is that of the {distance} {where}")
            yield shifted(compared, slot, compared.theirs[slot], offset, cause)


def reordered_rows(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Rows of the same prompt in any other order, or some of them in the place of others."""
    ours, theirs = compared.ours(slot), compared.theirs[slot]
    if not ours.isfinite().all():
        return
    nearest = _nearest(ours, theirs)
    num_missing = len(nearest) - len(set(nearest.tolist()))
    cause = Cause("rows-reordered", "the rows are the prompt's own, in another order")
    # Rows that are much alike are taken for one another, even where all are there.
    if num_missing > _LARGEST_ALIKE * len(nearest):
        cause = Cause(
            "rows-repeated", "the rows are the prompt's own, some several times and others not"
        )
    yield Explanation(cause, compared.bounds.errors(ours, theirs[nearest]))


def likely_offsets(sample: JudgedSample, slot: int, theirs: torch.Tensor) -> tuple[int, ...]:
    """How far bad rows stand from where ``theirs`` [m, hidden_size] has them, most often."""
    ours = sample.ours(slot)
    places = (sample.bad_rows(slot) & ours.isfinite().all(dim=1)).nonzero()[:, 0]
    if not len(places):
        return ()
    chosen = places[torch.linspace(0, len(places) - 1, min(_NUM_PROBES, len(places))).long()]
    offsets = _nearest(ours[chosen], theirs) - chosen
    return (int(offsets.mode().values),)


def shifted(
    sample: JudgedSample, slot: int, theirs: torch.Tensor, offset: int, cause: Cause
) -> Explanation:
    """Explains row t by row t + ``offset`` of ``theirs`` [m, hidden_size], where there is one."""
    ours = sample.ours(slot)
    places = torch.arange(len(ours)) + offset
    covered = (places >= 0) & (places < len(theirs))
    errors = torch.full((len(ours),), torch.inf, dtype=torch.float64)
    errors[covered] = sample.bounds.errors(ours[covered], theirs[places[covered]])
    return Explanation(cause, errors, covered)


def _of_rows(kind: str, text: str, is_so: torch.Tensor) -> Explanation:
    """Explains those rows wholly and no others."""
    errors = torch.full((len(is_so),), torch.inf, dtype=torch.float64)
    errors[is_so] = 0
    rows = "all rows" if bool(is_so.all()) else counted(int(is_so.sum()), "row")
    return Explanation(Cause(kind, text.format(rows)), errors)


def _nearest(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """For each row of ``ours`` the row of ``theirs`` with the largest cosine, int64 [n]."""
    directions = normalize(theirs.double(), dim=1).T
    pieces = torch.split(ours, _NEAREST_ROWS)
    return torch.cat([(normalize(rows.double(), dim=1) @ directions).argmax(1) for rows in pieces])
