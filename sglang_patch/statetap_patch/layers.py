"""Boundary indices against the layer ids that SGLang counts with.

Every model class of SGLang turns the flag's ids into its own ``layers_to_capture``, and they do not
agree on how. ``tests/acceptance/test_layer_ids.py`` holds this module against all of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from statetap_contract import UsageError

#: What to give to ``--return-aux-hidden-state-layer-ids`` for boundary indices, ascending; None
#: where no value gives exactly these.
_Convention: TypeAlias = Callable[[tuple[int, ...]], tuple[int, ...] | None]


def _after_layer(boundaries: tuple[int, ...]) -> tuple[int, ...]:
    """Llama's: id k is what decoder layer k puts out, which is boundary k + 1."""
    return tuple(boundary - 1 for boundary in boundaries)


def _boundary_unless_first_is_1(boundaries: tuple[int, ...]) -> tuple[int, ...] | None:
    """DeepSeek's: ids are boundaries, but when the first one is 1, all count as Llama's do.

    The slots ascend whatever the order of the ids, so any other id may stand before a 1.
    """
    if boundaries == (1,):
        return None
    return (*boundaries[1:], 1) if boundaries[0] == 1 else boundaries


#: Architectures whose classes do not follow Llama's convention; drafts among them, which share
#: their target's class.
CONVENTIONS: Final[Mapping[str, _Convention]] = dict.fromkeys(
    (
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV3ForCausalLMNextN",
        "Glm4MoeLiteForCausalLM",
        "Glm4MoeLiteForCausalLMNextN",
        "Glm5NextForConditionalGenerationNextN",
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaForCausalLMNextN",
        "KimiK25ForConditionalGeneration",
        "MistralLarge3ForCausalLM",
        "MistralLarge3ForCausalLMEagle",
    ),
    _boundary_unless_first_is_1,
)


#: Architectures whose slots are not the states of a layer: the residual stream, which SGLang keeps
#: beside them, is not added. Found by comparing with HF; no index would be right.
UNCAPTURABLE: Final = frozenset({"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"})


#: Architectures whose rows were compared with HF's, value by value. Of the others only the layers'
#: indices are known to be right.
COMPARED: Final = frozenset(
    {
        "LlamaForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "DeepseekV3ForCausalLM",
        "KimiK25ForConditionalGeneration",
    }
)


def raw_layer_ids(
    architecture: str, boundaries: tuple[int, ...], num_layers: int
) -> tuple[int, ...]:
    """The ``--return-aux-hidden-state-layer-ids`` with which a model captures these boundaries.

    An architecture that nobody has looked at is taken to count as Llama does. Where that is wrong,
    ``captured_boundaries`` finds it and the server does not start.

    Args:
        architecture: ``architectures[0]`` of the model's config.
        boundaries: boundary indices from 1 to ``num_layers - 1``, ascending.
        num_layers: decoder layers of the model.

    Raises:
        UsageError: kind ``layers-impossible``: no value of the flag captures exactly these; kind
            ``architecture-unsupported``: SGLang captures something else from every layer.
    """
    if architecture in UNCAPTURABLE:
        raise UsageError(
            "architecture-unsupported",
            f"SGLang's aux states of a {architecture} lack the residual stream, they are no hidden "
            "states; such a model cannot be captured from with this SGLang",
        )
    ids = CONVENTIONS.get(architecture, _after_layer)(boundaries)
    if ids is None:
        raise UsageError(
            "layers-impossible",
            f"SGLang cannot capture layer {boundaries[0]} of a {architecture} alone; choose one "
            f"from 2 to {num_layers - 1}, or another layer beside it",
        )
    return ids


def captured_boundaries(model: Any) -> tuple[int, ...]:
    """The boundary indices that a loaded SGLang model captures, ascending.

    ``layers_to_capture`` counts the inputs of decoder layers, as boundaries do. The order is the
    one that was asked for, while the slots come in layer order, hence the sort.

    Raises:
        ValueError: no module of the model captures anything.
    """
    return tuple(sorted(int(layer) for layer in capturing_module(model).layers_to_capture))


def capturing_module(model: Any) -> Any:
    """The language model's decoder, however deep a multimodal model has buried it.

    Raises:
        ValueError: no module of the model captures anything.
    """
    for module in model.modules():
        if getattr(module, "layers_to_capture", None):
            return module
    raise ValueError(f"{type(model).__name__} captures no layers")
