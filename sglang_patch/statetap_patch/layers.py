"""Boundary indices against the layer ids that SGLang counts with."""

from typing import Any


def raw_layer_ids(boundaries: tuple[int, ...]) -> tuple[int, ...]:
    """The ``--return-aux-hidden-state-layer-ids`` for boundary indices.

    The flag's id k means the output of decoder layer k, which is boundary k + 1. That holds for
    the models that follow Llama's convention; for one that does not, ``captured_boundaries``
    finds the difference and the server refuses to start.
    """
    return tuple(boundary - 1 for boundary in boundaries)


def captured_boundaries(model: Any) -> tuple[int, ...]:
    """The boundary indices that a loaded SGLang model captures, ascending.

    ``layers_to_capture`` counts the inputs of decoder layers, as boundaries do. It keeps the order
    that was asked for, while the slots come in layer order, hence the sort.

    Raises:
        ValueError: no module of the model captures anything.
    """
    for module in model.modules():
        layers = getattr(module, "layers_to_capture", None)
        if layers:
            return tuple(sorted(int(layer) for layer in layers))
    raise ValueError(f"{type(model).__name__} captures no layers")
