"""Which layer a slot holds, and what that is called beside the other slots."""

from collections.abc import Mapping
from dataclasses import dataclass

from statetap_contract import CaptureSpec

from statetap_producer.proving.causes.cause import Cause


@dataclass(frozen=True, slots=True)
class LayerSource:
    """A boundary of the model, and how often the final norm was applied to it."""

    boundary: int
    num_norms: int

    def __str__(self) -> str:
        norms = ("", "the final norm of ", "the final norm, twice, of ")
        return f"{norms[self.num_norms]}boundary {self.boundary}"


def right_sources(spec: CaptureSpec, num_layers: int) -> tuple[LayerSource, ...]:
    """What each slot ought to hold."""
    last = LayerSource(num_layers, 1 if spec.norm == "post" else 0)
    return (*(LayerSource(layer, 0) for layer in spec.layers), last)


def name_sources(
    found: Mapping[int, LayerSource], spec: CaptureSpec, num_layers: int
) -> dict[int, Cause]:
    """The causes of slots that hold other layers than they ought to."""
    right = right_sources(spec, num_layers)
    names = spec.slot_names
    if len(found) > 1 and set(found.values()) == {right[slot] for slot in found}:
        holders = (f"{names[slot]} holds {names[right.index(found[slot])]}" for slot in found)
        return dict.fromkeys(found, Cause("slots-swapped", ", ".join(holders)))
    return {slot: _name(source, right[slot], num_layers) for slot, source in found.items()}


def _name(source: LayerSource, right: LayerSource, num_layers: int) -> Cause:
    if source.boundary == right.boundary:
        return _name_norm(source, right)
    step = source.boundary - right.boundary
    if source.num_norms != right.num_norms:
        where = "the last one" if source.boundary == num_layers else f"{step:+} from its own"
        return Cause("other-layer", f"it holds {source}, {where}")
    if abs(step) == 1:
        order = "next" if step > 0 else "previous"
        return Cause("layer-off-by-one", f"each holds the {order} boundary in place of its own")
    return Cause("other-layer", f"it holds {source} in place of {right}")


def _name_norm(source: LayerSource, right: LayerSource) -> Cause:
    if source.num_norms > 1:
        return Cause("norm-twice", "the final norm was applied twice")
    if source.num_norms > right.num_norms:
        return Cause("norm-applied", "the final norm was applied, and should not have been")
    return Cause("norm-missing", "the final norm was not applied")
