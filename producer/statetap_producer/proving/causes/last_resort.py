"""What can be said where no hypothesis brings a sample within bounds: where it goes wrong.

Rows that are wrong among right ones are counted. Where all are wrong, each span of layers is tried
by itself: the reference goes on from what is stored in one slot, and should come to what is stored
in the next.
"""

from collections.abc import Sequence

import torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.token_hypotheses import first_bad_row
from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.terminal.counted import counted


def localise(compared: ComparedSample, slots: Sequence[int], reference: ReferenceModel) -> Cause:
    """Where the slots go wrong, or that nothing is known of it."""
    return (
        _wrong_rows(compared, slots)
        or _wrong_layers(compared, reference)
        or Cause("unexplained", "no simple cause explains it")
    )


def _wrong_rows(compared: ComparedSample, slots: Sequence[int]) -> Cause | None:
    """Wrong rows that stand together at one end, or are fewer than the right ones.

    None where what is left is not within the bounds either.
    """
    errors = [compared.errors[slot].nan_to_num(torch.inf) for slot in slots]
    is_wrong = torch.stack(errors).amax(dim=0) > compared.bounds.row_limit
    start = first_bad_row(compared, errors)
    if start is not None:
        is_tail = torch.arange(len(is_wrong)) >= start
        if start > 1 and _are_right(compared, errors, ~is_tail):
            return Cause("tail-wrong", f"from row {start:,} on, rows are not the model's")
    places = is_wrong.nonzero()[:, 0].tolist()
    if not places or not _are_right(compared, errors, ~is_wrong):
        return None
    if len(places) == 1:
        return Cause("rows-wrong", f"row {places[0]:,} is not the model's, all others are")
    if places[-1] == len(places) - 1:
        return Cause("prefix-wrong", f"the first {len(places):,} rows are not the model's")
    if 2 * len(places) <= len(is_wrong):
        where = f"between rows {places[0]:,} and {places[-1]:,}"
        return Cause("rows-wrong", f"{counted(len(places), 'row')} {where} are not the model's")
    return None


def _are_right(
    compared: ComparedSample, errors: Sequence[torch.Tensor], chosen: torch.Tensor
) -> bool:
    """Whether the chosen rows, bool [n], are some and within the bounds in each slot."""
    return bool(chosen.any()) and all(compared.bounds.are_kept_by(of[chosen]) for of in errors)


def _wrong_layers(compared: ComparedSample, reference: ReferenceModel) -> Cause | None:
    """Between which boundaries the server computed something else."""
    if not reference.has_layers:
        return None
    ends = (*compared.spec.layers, reference.num_layers)
    spans = list(zip((0, *ends[:-1]), ends, strict=True))
    wrong = [
        slot for slot in range(len(spans)) if not _is_right_span(compared, slot, ends, reference)
    ]
    if not wrong:
        text = "no simple cause explains it, and each span of layers by itself is within bounds"
        return Cause("unexplained", text)
    if wrong == [0]:
        text = f"what comes to boundary {ends[0]} is not the model's, all that is computed of it is"
        return Cause("input-differs", text)
    # With other weights the first row would be wrong too.
    firsts = [float(errors[0]) for errors in compared.errors]
    if all(error <= compared.bounds.row_limit for error in firsts):
        text = "the first row, which sees itself alone, is right, and those after it are not"
        return Cause("attention-differs", text)
    if len(wrong) == len(spans):
        text = "no simple cause explains it, and no span of layers is the model's: other weights?"
        return Cause("other-weights", text)
    where = " and ".join(f"{spans[slot][0]} and {spans[slot][1]}" for slot in wrong)
    text = f"the model computes something else between boundaries {where}, and the same elsewhere"
    return Cause("layers-differ", text)


def _is_right_span(
    compared: ComparedSample, slot: int, ends: tuple[int, ...], reference: ReferenceModel
) -> bool:
    """Whether a slot follows from the one before it, the first one from the token ids."""
    errors = compared.errors[slot]
    if slot:
        begin = ends[slot - 1], compared.ours(slot - 1)
        followed = reference.slots(reference.trace(compared.token_ids, begin=begin))
        errors = compared.bounds.errors(compared.ours(slot), followed[slot])
    return compared.bounds.are_kept_by(errors)
