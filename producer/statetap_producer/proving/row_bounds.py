"""How far rows may be from the reference: what is measured, and the bounds for each dtype."""

import math
from dataclasses import dataclass
from typing import Final, Self

import torch

#: Names of the two measures a bound is set on.
ABSOLUTE: Final = "difference"
RELATIVE: Final = "relative row error"

#: Unit roundoffs of the dtypes in half precision.
ROUNDOFFS: Final = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

#: The share of a sample's rows that ``high`` is the largest error of.
HIGH_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class RowErrors:
    """How the errors of some rows are spread."""

    #: Half of the rows are off by no more than this.
    middle: float
    #: Nine of ten rows are.
    high: float
    worst: float

    @classmethod
    def of(cls, errors: torch.Tensor) -> Self:
        """Of float [n], n > 0; all are not a number where one of the errors is none."""
        if errors.isnan().any():
            return cls(math.nan, math.nan, math.nan)
        in_order = errors.sort().values
        return cls(*(float(in_order[_place(share, len(errors))]) for share in (0.5, HIGH_SHARE, 1)))

    def or_worse(self, other: Self) -> Self:
        """The worse of each."""
        return type(self)(
            worse(self.middle, other.middle),
            worse(self.high, other.high),
            worse(self.worst, other.worst),
        )


def worse(known: float, new: float) -> float:
    """The larger of two; not a number is worst, and ``max`` alone would lose it."""
    return math.nan if math.isnan(known) or math.isnan(new) else max(known, new)


def _place(share: float, number: int) -> int:
    """Where in an ordered list the largest of that share of ``number`` values stands."""
    return max(math.ceil(share * number) - 1, 0)


@dataclass(frozen=True, slots=True)
class RowBounds:
    """The bounds on the rows of one slot of one sample."""

    #: ``ABSOLUTE``, the largest element of ours - reference in the row, over the reference row's
    #: root mean square where that is above 1; or ``RELATIVE``, ||ours - reference|| over
    #: ||reference||.
    measure: str
    #: Bounds on those of ``RowErrors``.
    middle: float
    high: float
    worst: float

    @classmethod
    def same(cls, measure: str, bound: float) -> Self:
        """One bound for every row."""
        return cls(measure, bound, bound, bound)

    @property
    def row_limit(self) -> float:
        """Parts rows that rounding has changed from foreign ones, one by one."""
        return math.sqrt(self.high * self.worst)

    def errors(self, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """The measure of each row, float64 [n]; not a number where a row has an element that is."""
        if self.measure == RELATIVE:
            return relative_errors(ours, theirs)
        scale = theirs.double().square().mean(dim=1).sqrt().clamp_min(1)
        return (ours.double() - theirs.double()).abs().amax(dim=1) / scale

    def are_kept_by(self, errors: torch.Tensor) -> bool:
        """Whether the errors [n] of a sample's rows are within; what is not a number is not."""
        found = RowErrors.of(errors)
        return found.middle <= self.middle and found.high <= self.high and found.worst <= self.worst


def relative_errors(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """||ours - theirs|| / ||theirs|| of each row, float64 [n]."""
    difference = torch.linalg.vector_norm(ours.double() - theirs, dim=1)
    norms = torch.linalg.vector_norm(theirs.double(), dim=1)
    return torch.div(difference, norms.clamp_min(torch.finfo(torch.float64).tiny))


def bounds_of(dtype: str, *, has_experts: bool) -> RowBounds:
    """The bounds on states of a dtype, of a model that has experts or has none.

    float32: rows equal the reference's exactly, or to some 2e-5 where another kernel (a cache, a
    chunk, tensor parallelism) adds up in another order. In rows with elements in the thousands the
    last bit of one is worth more than the bound, hence the row's own scale.

    bfloat16 and float16: an absolute bound means nothing, since some models have single elements in
    the thousands. The relative error of a row does not depend on scale, and grows with the unit
    roundoff u. A few rows are far off by right, so the middle row is what counts, then nine rows of
    ten; the worst one must only be nearer to its own row than a foreign one is.

    Where rounding makes a router of experts tip over, a row is off by as much as a foreign one,
    whatever the roundoff. The worst row then tells nothing but garbage.

    How near right and wrong rows come to the bounds: benchmarks/rounding.py, decision note 6.
    """
    if dtype == "float32":
        return RowBounds.same(ABSOLUTE, 1e-4)
    if has_experts:
        return RowBounds(RELATIVE, 0.15, 0.4, 2.0)
    roundoff = ROUNDOFFS[dtype]
    return RowBounds(RELATIVE, 16 * roundoff, 32 * roundoff, 0.5)
