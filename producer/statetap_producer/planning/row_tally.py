"""Counts the rows of a dataset while they are planned."""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

import numpy as np

from statetap_producer.reading.row_fault import RowFault
from statetap_producer.run.plan import PlanBatch
from statetap_producer.run.run_record import LeftOut, PlanCounts


@dataclass(slots=True)
class RowTally:
    """Rows of a dataset by what became of them."""

    num_read: int = 0
    num_duplicates: int = 0
    num_cut: int = 0
    num_loss_tokens: int = 0
    #: Tokens of each planned prompt.
    lengths: "array[int]" = field(default_factory=lambda: array("i"))
    num_left_out: Counter[str] = field(default_factory=Counter)
    first_left_out: dict[str, RowFault] = field(default_factory=dict)

    def plan(self, batch: PlanBatch) -> None:
        """Counts prompts that are planned."""
        self.lengths.frombytes(batch.column("num_tokens").to_numpy().tobytes())
        bounds = batch.column("loss_spans").flatten().to_numpy()
        self.num_loss_tokens += int(
            bounds[1::2].sum(dtype=np.int64) - bounds[::2].sum(dtype=np.int64)
        )
        self.num_cut += batch.column("is_cut").true_count

    def leave_out(self, fault: RowFault) -> None:
        self.num_left_out[fault.kind] += 1
        self.first_left_out.setdefault(fault.kind, fault)

    def left_out(self) -> tuple[LeftOut, ...]:
        """Most frequent reason first."""
        return tuple(
            LeftOut(kind, num_rows, first.file, first.line, first.message)
            for kind, num_rows in self.num_left_out.most_common()
            for first in [self.first_left_out[kind]]
        )

    def counts(self) -> PlanCounts:
        """Raises ValueError when nothing is planned."""
        lengths = np.frombuffer(self.lengths, np.int32)
        return PlanCounts(
            num_read=self.num_read,
            num_planned=len(lengths),
            num_duplicates=self.num_duplicates,
            num_cut=self.num_cut,
            num_tokens=int(lengths.sum(dtype=np.int64)),
            num_loss_tokens=self.num_loss_tokens,
            min_tokens=int(lengths.min()),
            median_tokens=median_low(self.lengths),
            max_tokens=int(lengths.max()),
            histogram=_histogram(lengths),
        )


def _histogram(lengths: Any) -> tuple[int, ...]:
    # The exponent of a float is exact for every int32; a logarithm would round.
    _, exponents = np.frexp(lengths.astype(np.float64))
    return tuple(np.bincount(exponents - 1).tolist())
