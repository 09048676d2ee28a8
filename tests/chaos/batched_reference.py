"""The right answer for very many prompts: HF transformers in float32, one length at a time."""

from array import array
from pathlib import Path
from typing import Any

import numpy as np
import torch
from statetap_contract import CaptureSpec
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar


class BatchedReference:
    """A model as HF transformers runs it, with the slots of a spec whose norm is ``post``."""

    def __init__(self, model: Path, spec: CaptureSpec) -> None:
        assert spec.norm == "post"
        # Threads that spin for work beside others' make both slower on two cores.
        torch.set_num_threads(1)
        disable_progress_bar()
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self._layers = spec.layers

    @torch.inference_mode()
    def states(self, prompts: list["array[int]"]) -> np.ndarray[Any, Any]:
        """float32 [num_prompts, num_tokens, slots * hidden], from prompts of one length."""
        ids = torch.tensor([prompt.tolist() for prompt in prompts])
        layers = self._model(ids, output_hidden_states=True).hidden_states
        return torch.cat([*(layers[k] for k in self._layers), layers[-1]], dim=2).numpy()
