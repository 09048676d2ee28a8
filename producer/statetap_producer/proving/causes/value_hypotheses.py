"""Hypotheses about elements: that they are the right ones, read or written in another way."""

from collections.abc import Iterator
from typing import Final

import torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation
from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.proving.row_bounds import relative_errors

#: The dtypes in half precision, and the one that each may be taken for.
_HALVES: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def other_layout(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Elements of all slots side by side, or slots one after the other for the whole prompt."""
    states, spec = compared.states, compared.spec
    shape = len(states), spec.num_slots, spec.hidden_size
    interleaved = states.reshape(shape[0], shape[2], shape[1])[:, :, slot]
    stacked = states.reshape(shape[1], shape[0], shape[2])[slot]
    for ours, text in (
        (interleaved, "elements of the slots stand in turn, slot by slot within each"),
        (stacked, "all rows of a slot stand together, before those of the next slot"),
    ):
        errors = compared.bounds.errors(ours.float(), compared.theirs[slot])
        yield Explanation(Cause("layout-differs", text), errors)


def scaled(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Right but for one factor."""
    ours, theirs = compared.ours(slot).double(), compared.theirs[slot].double()
    bad = compared.bad_rows(slot)
    factors = (ours * theirs).sum(dim=1) / (theirs * theirs).sum(dim=1)
    factor = float(factors[bad].median())
    if factor not in {0.0, 1.0} and abs(factor) < torch.inf:
        # Two digits tell most factors; one that they do not tell from 0 or 1 takes more.
        shown = f"{factor:.5g}" if round(factor, 2) in {0.0, 1.0} else f"{round(factor, 2):g}"
        cause = Cause("scaled", f"each row is {shown} times what it should be")
        yield Explanation(cause, compared.bounds.errors(ours / factor, theirs))


def misread(
    compared: ComparedSample, slot: int, reference: ReferenceModel
) -> Iterator[Explanation]:
    """Bits of the other dtype of two bytes."""
    dtype = compared.spec.dtype
    for other, as_other in _HALVES.items():
        if dtype in _HALVES and other != dtype:
            cause = Cause("misread-dtype", f"the bits are {other}, taken for {dtype}")
            ours = compared.states.view(as_other)[:, _columns(compared, slot)]
            # It may have been computed in the one and rounded to the other.
            bounds = reference.bounds_of("bfloat16")
            errors = bounds.errors(ours, compared.theirs[slot])
            yield Explanation(cause, errors, bounds=bounds)


def byte_swapped(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """Elements with their bytes in the other order."""
    states = compared.states
    size = states.element_size()
    as_bytes = states.contiguous().view(torch.uint8).reshape(*states.shape, size)
    swapped = as_bytes.flip(-1).contiguous().flatten(1).view(states.dtype)
    cause = Cause("byte-swapped", f"the {size} bytes of each element are in the other order")
    ours = swapped[:, _columns(compared, slot)]
    yield Explanation(cause, compared.bounds.errors(ours, compared.theirs[slot]))


def rounded(
    compared: ComparedSample, slot: int, reference: ReferenceModel
) -> Iterator[Explanation]:
    """float32 that holds no more than half precision does, and is right for that."""
    if compared.spec.dtype != "float32":
        return
    ours = compared.ours(slot)
    for name, dtype in _HALVES.items():
        if bool((ours.to(dtype).float() == ours).all()):
            cause = Cause("rounded", f"the elements are no more precise than {name}")
            errors = relative_errors(ours, compared.theirs[slot])
            yield Explanation(cause, errors, bounds=reference.bounds_of(name))


def _columns(compared: ComparedSample, slot: int) -> slice:
    size = compared.spec.hidden_size
    return slice(slot * size, (slot + 1) * size)
