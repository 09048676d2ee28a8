"""One sample beside the reference's states of the same tokens."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from statetap_contract import CaptureSpec
from statetap_store import Sample
from statetap_store.torch_view import to_torch

from statetap_producer.proving.reference_model import ReferenceModel, Trace
from statetap_producer.proving.row_bounds import RowBounds


@dataclass(frozen=True, slots=True, eq=False)
class JudgedSample:
    """What is stored, and how far each row is off."""

    key: str
    spec: CaptureSpec
    #: [n, row_width] in the dtype of the spec.
    states: torch.Tensor
    #: What each slot must keep, if it is right.
    bounds: RowBounds
    #: For each slot float64 [n], in the measure of the bounds.
    errors: list[torch.Tensor]

    def beyond(self, bounds: RowBounds) -> list[int]:
        """Numbers of the slots that are beyond these bounds, of the same measure."""
        return [slot for slot, errors in enumerate(self.errors) if not bounds.are_kept_by(errors)]

    def ours(self, slot: int) -> torch.Tensor:
        """float32 [n, hidden_size], as stored."""
        size = self.spec.hidden_size
        return self.states[:, slot * size : (slot + 1) * size].float()

    def bad_rows(self, slot: int) -> torch.Tensor:
        """Bool [n]: the rows that are further off than most may be."""
        return ~(self.errors[slot] <= self.bounds.middle)


@dataclass(frozen=True, slots=True, eq=False)
class ComparedSample(JudgedSample):
    """A sample with what the reference makes of its tokens."""

    #: int64 [n].
    token_ids: torch.Tensor
    #: All boundaries as the reference has them.
    trace: Trace
    #: For each slot float32 [n, hidden_size], as it should be.
    theirs: list[torch.Tensor]

    @classmethod
    @torch.inference_mode()
    def of(cls, sample: Sample, spec: CaptureSpec, reference: ReferenceModel) -> Self:
        """Computes the sample's tokens anew."""
        token_ids = torch.from_numpy(sample.token_ids.astype(np.int64))
        states = to_torch(sample.states, spec.dtype)
        trace = reference.trace(token_ids)
        theirs = reference.slots(trace)
        ours = torch.split(states, spec.hidden_size, dim=1)
        bounds = reference.bounds
        errors = [bounds.errors(a, b) for a, b in zip(ours, theirs, strict=True)]
        return cls(
            key=sample.key,
            spec=spec,
            states=states,
            bounds=bounds,
            errors=errors,
            token_ids=token_ids,
            trace=trace,
            theirs=theirs,
        )
