"""The state before the final norm, caught on its way into it."""

import pytest
import torch
from statetap_patch.final_norm import FinalNormInput


class Norm(torch.nn.Module):
    """As SGLang's RMSNorm: with a residual stream it adds it, in place, and returns the sum."""

    def forward(
        self, states: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return states * 10
        residual += states
        return residual * 10, residual


class Decoder(torch.nn.Module):
    """The part that captures aux layers."""

    layers_to_capture = (1,)

    def __init__(self) -> None:
        super().__init__()
        self.norm = Norm()


class Model(torch.nn.Module):
    """As SGLang nests it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()


def test_with_a_residual_stream_the_sum_is_the_state() -> None:
    """2 + 3, whatever the norm makes of it."""
    model = Model()
    kept = FinalNormInput(model)
    model.model.norm(torch.full((2, 4), 2.0), torch.full((2, 4), 3.0))
    assert kept.take().tolist() == [[5.0] * 4] * 2


def test_without_one_the_input_is_the_state() -> None:
    """And it is handed out once: a pass that skips the norm gets nothing."""
    model = Model()
    kept = FinalNormInput(model)
    model.model.norm(torch.full((1, 4), 2.0))
    assert kept.take().tolist() == [[2.0] * 4]
    assert kept.take() is None


def test_a_model_without_a_final_norm_is_refused() -> None:
    """By name, at start."""
    model = Model()
    del model.model.norm
    with pytest.raises(ValueError, match="Model has no final norm"):
        FinalNormInput(model)


@pytest.mark.parametrize("name", ["finalize_norm", "flashinfer_mnnvl_cutedsl_fusion"])
def test_a_fused_final_norm_is_refused(name: str) -> None:
    """At start: its module is never called, and every capture would fail later."""
    model = Model()
    setattr(model.model, name, object())
    with pytest.raises(ValueError, match="Model fuses its final norm"):
        FinalNormInput(model)
