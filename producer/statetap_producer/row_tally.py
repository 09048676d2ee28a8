"""Counts the rows of a dataset while they are planned."""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from statistics import median_low

from statetap_contract import Prompt, RejectError

from statetap_producer.run_record import LeftOut, PlanCounts


@dataclass(slots=True)
class RowTally:
    """Rows of a dataset by what became of them."""

    num_read: int = 0
    num_duplicates: int = 0
    num_loss_tokens: int = 0
    lengths: "array[int]" = field(default_factory=lambda: array("i"))
    num_left_out: Counter[str] = field(default_factory=Counter)
    first_left_out: dict[str, tuple[int, str]] = field(default_factory=dict)

    def plan(self, prompt: Prompt) -> None:
        self.lengths.append(prompt.num_tokens)
        self.num_loss_tokens += sum(end - start for start, end in prompt.loss_spans)

    def leave_out(self, line: int, error: RejectError) -> None:
        self.num_left_out[error.kind] += 1
        self.first_left_out.setdefault(error.kind, (line, error.message))

    def left_out(self) -> tuple[LeftOut, ...]:
        """Most frequent reason first."""
        return tuple(
            LeftOut(kind, num_rows, *self.first_left_out[kind])
            for kind, num_rows in self.num_left_out.most_common()
        )

    def counts(self) -> PlanCounts:
        return PlanCounts(
            num_read=self.num_read,
            num_planned=len(self.lengths),
            num_duplicates=self.num_duplicates,
            num_tokens=sum(self.lengths),
            num_loss_tokens=self.num_loss_tokens,
            min_tokens=min(self.lengths),
            median_tokens=median_low(self.lengths),
            max_tokens=max(self.lengths),
        )
