"""How far the rows of all samples are off, slot by slot."""

from dataclasses import dataclass

import torch
from statetap_contract import CaptureSpec

from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.row_bounds import RowErrors, relative_errors, worse


@dataclass(frozen=True, slots=True)
class SlotErrors:
    """One slot, over all rows of all samples looked at."""

    slot: str
    #: Largest difference of an element.
    max_absolute: float
    #: ||ours - reference|| / ||reference|| of a sample's middle row, of the last of its best nine
    #: rows of ten, and of its worst row; each of the sample in which it is largest.
    middle_relative: float
    high_relative: float
    max_relative: float
    #: Smallest cosine between a row and its reference.
    min_cosine: float
    #: Samples in which the slot is beyond the bounds.
    num_beyond: int


class SlotTally:
    """The largest errors so far."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._absolute = [0.0] * spec.num_slots
        self._cosine = [1.0] * spec.num_slots
        self._relative = [RowErrors(0.0, 0.0, 0.0)] * spec.num_slots
        self._num_beyond = [0] * spec.num_slots

    def add(self, compared: ComparedSample, beyond: list[int]) -> None:
        """Takes one sample into account, with the slots in which it is beyond the bounds."""
        for slot, theirs in enumerate(compared.theirs):
            ours = compared.ours(slot)
            difference = (ours.double() - theirs.double()).abs().max()
            cosine = torch.nn.functional.cosine_similarity(ours.double(), theirs.double(), dim=1)
            self._absolute[slot] = worse(self._absolute[slot], float(difference))
            self._cosine[slot] = -worse(-self._cosine[slot], -float(cosine.min()))
            self._relative[slot] = self._relative[slot].or_worse(
                RowErrors.of(relative_errors(ours, theirs))
            )
        for slot in beyond:
            self._num_beyond[slot] += 1

    def slots(self) -> tuple[SlotErrors, ...]:
        """In row order."""
        return tuple(
            SlotErrors(
                slot=name,
                max_absolute=self._absolute[slot],
                middle_relative=self._relative[slot].middle,
                high_relative=self._relative[slot].high,
                max_relative=self._relative[slot].worst,
                min_cosine=self._cosine[slot],
                num_beyond=self._num_beyond[slot],
            )
            for slot, name in enumerate(self._spec.slot_names)
        )
