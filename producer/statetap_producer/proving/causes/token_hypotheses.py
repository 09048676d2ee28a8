"""Hypotheses about tokens: that others were computed, or in other places.

Each computes the prompt anew in another way, and offers what all slots would be then.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation
from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.terminal.counted import counted

#: Chunks of one prompt that are looked for.
_MOST_CHUNKS: Final = 16

#: How much one row may say about where the wrong ones begin.
_MOST_SAID: Final = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Rival:
    """What the slots would be if a cause were the one."""

    cause: Cause
    #: For each slot float32 [n, hidden_size].
    slots: list[torch.Tensor]
    #: Bool [n], the rows of which it says anything.
    covered: torch.Tensor

    def explain(self, compared: ComparedSample, slot: int) -> Explanation:
        """Holds one slot against what it would be."""
        errors = compared.bounds.errors(compared.ours(slot), self.slots[slot])
        return Explanation(self.cause, errors, self.covered)


def rivals(compared: ComparedSample, reference: ReferenceModel) -> Iterator[Rival]:
    """All of them, one at a time; each costs a forward pass or more."""
    yield from _bos_added(compared, reference)
    yield from _first_missing(compared, reference)
    yield from _positions(compared, reference)
    yield from _chunks(compared, reference)


def _bos_added(compared: ComparedSample, reference: ReferenceModel) -> Iterator[Rival]:
    if reference.bos_token is None:
        return
    bos = torch.tensor([reference.bos_token])
    slots = reference.slots(reference.trace(torch.cat([bos, compared.token_ids])))
    covered = torch.ones(len(compared.token_ids), dtype=torch.bool)
    text = f"token {reference.bos_token} was put in front of the prompt"
    yield Rival(Cause("bos-added", text), [rows[1:] for rows in slots], covered)
    text += ", and the rows begin with its row"
    yield Rival(Cause("bos-added", text), [rows[:-1] for rows in slots], covered)


def _first_missing(compared: ComparedSample, reference: ReferenceModel) -> Iterator[Rival]:
    ids = compared.token_ids
    if len(ids) < 2:  # noqa: PLR2004 - nothing is left of a single one
        return
    first = int(ids[0])
    kind = "bos-missing" if first == reference.bos_token else "prefix-missing"
    text = f"the prompt was computed without its first token, {first}"
    slots = reference.slots(reference.trace(ids[1:]))
    places = torch.arange(len(ids))
    for cause, pad, covered in (
        (Cause(kind, text), (0, 0, 1, 0), places > 0),
        (Cause(kind, f"{text}, and rows moved up"), (0, 0, 0, 1), places < len(ids) - 1),
    ):
        padded = [torch.nn.functional.pad(rows, pad) for rows in slots]
        yield Rival(cause, padded, covered)


def _positions(compared: ComparedSample, reference: ReferenceModel) -> Iterator[Rival]:
    ids = compared.token_ids
    places = torch.arange(len(ids))
    covered = torch.ones_like(places, dtype=torch.bool)
    slots = reference.slots(reference.trace(ids, positions=torch.zeros_like(places)))
    text = "all tokens were computed as if they stood in the same place"
    yield Rival(Cause("positions-missing", text), slots, covered)
    start = first_bad_row(compared, compared.errors)
    if start:
        positions = torch.where(places < start, places, places - start)
        slots = reference.slots(reference.trace(ids, positions=positions))
        text = f"positions began again at row {start:,}"
        yield Rival(Cause("positions-restarted", text), slots, covered)


def _chunks(compared: ComparedSample, reference: ReferenceModel) -> Iterator[Rival]:
    """From some row on, and perhaps from further ones, nothing before it was attended to."""
    ids = compared.token_ids
    ours = [compared.ours(slot) for slot in range(compared.spec.num_slots)]
    num_empty = _num_empty(ours)
    theirs = [rows.clone() for rows in compared.theirs]
    errors = list(compared.errors)
    starts: list[int] = []
    start = num_empty or first_bad_row(compared, errors)
    while start and start < len(ids) and len(starts) < _MOST_CHUNKS:
        starts.append(start)
        for rows, alone in zip(theirs, reference.slots(reference.trace(ids[start:])), strict=True):
            rows[start:] = alone
        errors = [
            compared.bounds.errors(a[start:], b[start:]) for a, b in zip(ours, theirs, strict=True)
        ]
        further = first_bad_row(compared, errors)
        start = start + further if further else 0
    if not starts:
        return
    covered = torch.ones(len(ids), dtype=torch.bool)
    if num_empty:
        for rows in theirs:
            rows[:num_empty] = 0
        text = f"the rest was computed without the first {counted(num_empty, 'token')}, whose rows "
        yield Rival(Cause("prefix-missing", text + "are empty"), theirs, covered)
        return
    where = ", ".join(f"{row:,}" for row in starts)
    text = f"from row {where} on, tokens were computed without those before"
    if len(starts) > 1:
        text = f"chunks were computed without those before, from rows {where} on"
    yield Rival(Cause("chunks-alone", text), theirs, covered)


def first_bad_row(compared: ComparedSample, errors: list[torch.Tensor]) -> int | None:
    """The row from which on most rows of some slot are foreign and before which most are not.

    A few rows on either side may be otherwise. None where there is no such row.

    Args:
        compared: the sample.
        errors: for each slot float64 [n].
    """
    worst = torch.stack(errors).nan_to_num(nan=torch.inf, posinf=torch.inf).amax(dim=0)
    said = (worst / compared.bounds.row_limit).log().clamp(-_MOST_SAID, _MOST_SAID)
    before = torch.cat([torch.zeros(1, dtype=said.dtype), said.cumsum(0)])
    start = int(before.argmin())
    return start if start < len(worst) else None


def _num_empty(ours: list[torch.Tensor]) -> int:
    """How many rows at the beginning are zeros in every slot."""
    is_empty = torch.stack([(rows == 0).all(dim=1) for rows in ours]).all(dim=0)
    return int(is_empty.long().cumprod(0).sum())
