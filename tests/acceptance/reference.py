"""The right answer, by other means: HF transformers in float32, one prompt at a time."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Reference:
    """A model as HF transformers runs it."""

    def __init__(self, model: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def states(self, token_ids: list[int], layers: tuple[int, ...]) -> torch.Tensor:
        """What a row must hold: ``hidden_states[k]`` of each layer, then the normed last one.

        Returns:
            [num_tokens, (len(layers) + 1) * hidden] float32.
        """
        with torch.no_grad():
            output = self._model(torch.tensor([token_ids]), output_hidden_states=True)
        return torch.cat([output.hidden_states[k][0] for k in (*layers, -1)], dim=1)
