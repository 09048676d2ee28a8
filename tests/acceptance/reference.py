"""The right answer, by other means: HF transformers in float32, one prompt at a time."""

import threading
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Reference:
    """A model as HF transformers runs it."""

    def __init__(self, model: Path) -> None:
        # Threads that spin for work beside a server's own made both five times slower on two cores.
        torch.set_num_threads(1)
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._lock = threading.Lock()  # tests judge rows from many threads
        self._before_norm: torch.Tensor
        self._model.model.norm.register_forward_pre_hook(self._keep)

    def states(
        self, token_ids: list[int], layers: tuple[int, ...], norm: str = "post"
    ) -> torch.Tensor:
        """What a row must hold: ``hidden_states[k]`` of each layer, then the last hidden state.

        Args:
            token_ids: the prompt.
            layers: boundary indices.
            norm: ``post`` for the last hidden state after the final norm, which is what HF gives as
                ``hidden_states[-1]``; ``pre`` for what that norm is given.

        Returns:
            [num_tokens, (len(layers) + 1) * hidden] float32.
        """
        with self._lock, torch.no_grad():
            output = self._model(torch.tensor([token_ids]), output_hidden_states=True)
            before_norm = self._before_norm
        last = {"post": output.hidden_states[-1][0], "pre": before_norm}[norm]
        return torch.cat([*(output.hidden_states[k][0] for k in layers), last], dim=1)

    def _keep(self, _norm: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self._before_norm = inputs[0][0]
