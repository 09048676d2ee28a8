"""The model as HF transformers computes it: float32, on the CPU.

Boundary index k is its ``hidden_states[k]``; the last one there has had the final norm. What that
norm was given is caught on its way in.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from statetap_contract import CaptureSpec, MissingError, ModelFolder, UsageError
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from statetap_producer.proving.row_bounds import RowBounds, bounds_of
from statetap_producer.terminal.counted import counted

#: What the number of a layer's experts is called in configs of transformers.
_NUM_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

#: Rows that go through the LM head at a time; a row of logits is as wide as the vocabulary.
_HEAD_ROWS: Final = 256


@dataclass(frozen=True, slots=True)
class Trace:
    """The states of some tokens at every boundary, float32 [n, hidden_size] each."""

    #: Before the first layer, between the layers, and after the last one, before the final norm.
    boundaries: tuple[torch.Tensor, ...]
    #: The last of them after the final norm.
    normed: torch.Tensor


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
        self._spec = spec
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

    @property
    def bounds(self) -> RowBounds:
        """What each slot of a sample must keep; ``bounds_of`` says why."""
        return self.bounds_of(self._spec.dtype)

    def bounds_of(self, dtype: str) -> RowBounds:
        """The same for another dtype."""
        config = self._model.config.get_text_config()
        has_experts = any(getattr(config, name, None) for name in _NUM_EXPERTS)
        return bounds_of(dtype, has_experts=has_experts)

    @property
    def bos_token(self) -> int | None:
        """The id that the model's config names as the first of a text, if it names one."""
        bos = getattr(self._model.config, "bos_token_id", None)
        return bos if isinstance(bos, int) else None

    @property
    def num_layers(self) -> int:
        """Layers of the model, which is the last boundary index too."""
        number: int = self._model.config.get_text_config().num_hidden_layers
        return number

    @property
    def has_layers(self) -> bool:
        """Whether its layers stand where ``trace`` can begin with one of them."""
        return hasattr(self._model.base_model, "layers")

    def trace(
        self,
        token_ids: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        begin: tuple[int, torch.Tensor] | None = None,
    ) -> Trace:
        """All boundaries of one sequence.

        Args:
            token_ids: int64 [n].
            positions: int64 [n], in place of 0, 1, 2, …; every token sees all before it even so.
            begin: a boundary index, and float32 [n, hidden_size] that take the place of the
                model's own states there. Boundaries above it follow from them.
        """
        # Without a mask, transformers takes positions that start again for several sequences.
        others = {} if positions is None else {"position_ids": positions[None]}
        with self._replaced(begin):
            answer = self._model.base_model(
                input_ids=token_ids[None],
                attention_mask=torch.ones_like(token_ids)[None],
                output_hidden_states=True,
                use_cache=False,
                **others,
            )
        *boundaries, normed = (states[0] for states in answer.hidden_states)
        return Trace((*boundaries, self._unnormed[0]), normed)

    def slots(self, trace: Trace) -> list[torch.Tensor]:
        """float32 [n, hidden_size] for each slot of the spec, in row order."""
        last = trace.normed if self._spec.norm == "post" else trace.boundaries[-1]
        return [*(trace.boundaries[layer] for layer in self._spec.layers), last]

    def norm(self, rows: torch.Tensor) -> torch.Tensor:
        """The final norm of rows [n, hidden_size]."""
        normed: torch.Tensor = self._norm(rows)
        return normed

    def next_tokens(self, last: torch.Tensor) -> Iterator[torch.Tensor]:
        """Most likely next token of each row of a last hidden state, in pieces."""
        head = self._model.get_output_embeddings()
        for rows in torch.split(last, _HEAD_ROWS):
            yield head(rows if self._spec.norm == "post" else self._norm(rows)).argmax(-1)

    def _keep_unnormed(self, _norm: torch.nn.Module, inputs: tuple[torch.Tensor]) -> None:
        self._unnormed = inputs[0]

    @contextmanager
    def _replaced(self, begin: tuple[int, torch.Tensor] | None) -> Iterator[None]:
        """Has one layer work on given states."""
        if begin is None:
            yield
            return
        boundary, states = begin

        def replace(_layer: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (states[None], *inputs[1:])

        handle = self._model.base_model.layers[boundary].register_forward_pre_hook(replace)
        try:
            yield
        finally:
            handle.remove()


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
