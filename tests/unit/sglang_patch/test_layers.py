"""Boundary indices into SGLang's layer ids and back."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from statetap_contract import UsageError
from statetap_patch.layers import UNCAPTURABLE, captured_boundaries, raw_layer_ids


@pytest.mark.parametrize(
    ("architecture", "boundaries", "ids"),
    [
        # Measured on SGLang 0.5.23 against HF transformers, flag by flag.
        ("LlamaForCausalLM", (2, 5, 6), (1, 4, 5)),
        ("LlamaForCausalLM", (1,), (0,)),
        ("Qwen3MoeForCausalLM", (3, 5, 6), (2, 4, 5)),
        ("DeepseekV3ForCausalLM", (2, 4, 5), (2, 4, 5)),
        ("DeepseekV3ForCausalLM", (1, 4, 5), (4, 5, 1)),
        ("KimiK25ForConditionalGeneration", (2,), (2,)),
        ("KimiK25ForConditionalGeneration", (1, 7), (7, 1)),
        ("NobodyKnowsThisForCausalLM", (1, 4, 7), (0, 3, 6)),
    ],
)
def test_ids_follow_the_architecture(
    architecture: str, boundaries: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    """Llama's count is the rule; DeepSeek's classes count boundaries unless the first id is 1."""
    assert raw_layer_ids(architecture, boundaries, 8) == ids


def test_what_cannot_be_had_is_refused_with_what_can() -> None:
    """DeepSeek's hook makes a 2 of a lone 1, and no other id gives boundary 1."""
    with pytest.raises(UsageError, match=r"layer 1 .* from 2 to 60, or another") as caught:
        raw_layer_ids("DeepseekV3ForCausalLM", (1,), 61)
    assert caught.value.kind == "layers-impossible"


@pytest.mark.parametrize("architecture", sorted(UNCAPTURABLE))
def test_what_sglang_captures_wrongly_is_refused(architecture: str) -> None:
    """Gemma 3's slots are not the states of any layer, whatever the index."""
    with pytest.raises(UsageError, match=f"{architecture} lack the residual stream") as caught:
        raw_layer_ids(architecture, (2, 4, 5), 8)
    assert caught.value.kind == "architecture-unsupported"


class Module(SimpleNamespace):
    """As much of a torch module as the search needs."""

    def modules(self) -> Iterator["Module"]:
        yield self
        for value in vars(self).values():
            if isinstance(value, Module):
                yield from value.modules()


def test_captured_layers_are_found_however_deep() -> None:
    """A multimodal model holds a causal model, which holds the one with the layers."""
    language_model = Module(model=Module(layers_to_capture=[5, 1, 4]))
    wrapper = Module(vision=Module(layers_to_capture=None), language_model=language_model)
    assert captured_boundaries(wrapper) == (1, 4, 5)


def test_a_model_that_captures_nothing_is_an_error() -> None:
    """An empty list is what every model starts with."""
    with pytest.raises(ValueError, match="Module captures no layers"):
        captured_boundaries(Module(model=Module(layers_to_capture=[])))
