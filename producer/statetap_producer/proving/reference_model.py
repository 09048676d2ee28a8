"""The model as HF transformers computes it: float32, on the CPU.

Boundary index k is its ``hidden_states[k]``; the last one there has had the final norm. What that
norm was given is caught on its way in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from statetap_contract import CaptureSpec, MissingError, ModelFolder, UsageError
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from statetap_producer.terminal.counted import counted

#: Rows that go through the LM head at a time; a row of logits is as wide as the vocabulary.
_HEAD_ROWS: Final = 256


class ReferenceModel:
    """The model in float32, and the slots of its hidden states that a spec names.

    Raises:
        UsageError: kind ``model-differs``: not the model of the spec, or ``norm-unknown``.
        MissingError: kind ``model-unloadable``, and those of ``ModelFolder.read``.
    """

    def __init__(self, folder: Path, spec: CaptureSpec) -> None:
        model = ModelFolder.read(folder)
        if model.revision != spec.revision:
            raise UsageError(
                "model-differs",
                f"{folder} is revision {model.revision}, the states are of {spec.model}, revision "
                f"{spec.revision}; give the folder that the server loaded",
            )
        self._layers = spec.layers
        self._is_normed = spec.norm == "post"
        self._model = _load(folder)
        norm = getattr(self._model.base_model, "norm", None)
        if norm is None:
            raise UsageError(
                "norm-unknown",
                f"transformers' {type(self._model).__name__} has no final norm of the usual name; "
                "its last hidden states cannot be compared",
            )
        self._norm = norm
        self._norm.register_forward_pre_hook(self._keep_unnormed)
        self._unnormed: torch.Tensor

    def slots(self, token_ids: torch.Tensor) -> list[torch.Tensor]:
        """float32 [n, hidden_size] for each slot, from int64 [n] ids."""
        answer = self._model.base_model(
            input_ids=token_ids[None], output_hidden_states=True, use_cache=False
        )
        last = answer.hidden_states[-1] if self._is_normed else self._unnormed
        return [*(answer.hidden_states[layer][0] for layer in self._layers), last[0]]

    def next_tokens(self, last: torch.Tensor) -> Iterator[torch.Tensor]:
        """Most likely next token of each row of a last hidden state, in pieces."""
        head = self._model.get_output_embeddings()
        for rows in torch.split(last, _HEAD_ROWS):
            yield head(rows if self._is_normed else self._norm(rows)).argmax(-1)

    def _keep_unnormed(self, _norm: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self._unnormed = inputs[0]


def _load(folder: Path) -> Any:
    disable_progress_bar()  # its bar of weights would run into ours
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # what the Rust reader of safetensors raises has no common base
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise MissingError(
            "model-unloadable", f"transformers cannot load the model in {folder}: {reason:.200}"
        ) from error
    # Weights that are absent are made up, with a warning, and nothing would agree.
    if missing := sorted(info["missing_keys"]):
        raise MissingError(
            "model-unloadable",
            f"the model in {folder} lacks {counted(len(missing), 'weight')}, {missing[0]} among "
            "them; copy all of its weight files there",
        )
    return model.eval()
