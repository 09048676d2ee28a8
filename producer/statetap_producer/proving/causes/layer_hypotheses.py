"""Hypotheses about layers: that a slot holds another one, or one that was normed otherwise."""

from collections.abc import Iterator

import torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation
from statetap_producer.proving.causes.layer_source import LayerSource, right_sources
from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.reference_model import ReferenceModel


def other_layers(
    compared: ComparedSample, slot: int, reference: ReferenceModel
) -> Iterator[Explanation]:
    """The nearest of all boundaries, before and after the final norm.

    The last one is tried after norming it twice, too. Neighbours may be near one another, so that
    others than the nearest say nothing.
    """
    right = right_sources(compared.spec, reference.num_layers)[slot]
    bad, ours = compared.bad_rows(slot), compared.ours(slot)
    others = (
        Explanation(source, compared.bounds.errors(ours, rows))
        for source, rows in _sources(compared, reference)
        if source != right
    )
    yield min(others, key=lambda other: float(other.errors[bad].nan_to_num(torch.inf).median()))


def _sources(
    compared: ComparedSample, reference: ReferenceModel
) -> Iterator[tuple[LayerSource, torch.Tensor]]:
    boundaries, normed = compared.trace.boundaries, compared.trace.normed
    for boundary, rows in enumerate(boundaries):
        yield LayerSource(boundary, 0), rows
        yield LayerSource(boundary, 1), reference.norm(rows)
    yield LayerSource(len(boundaries) - 1, 2), reference.norm(normed)


def unweighted_norm(
    compared: ComparedSample, slot: int, _reference: ReferenceModel
) -> Iterator[Explanation]:
    """The last hidden state brought to unit size, without the weight of the final norm."""
    if slot == compared.spec.num_slots - 1:
        rows = compared.trace.boundaries[-1].double()
        sizes = rows.square().mean(dim=1, keepdim=True).sqrt()
        cause = Cause("norm-unweighted", "the final norm was applied without its weight")
        yield Explanation(cause, compared.bounds.errors(compared.ours(slot), rows / sizes))
