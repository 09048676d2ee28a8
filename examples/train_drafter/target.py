"""The target's own embedding and LM head, read from its folder. No layer of it is loaded."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import torch
from safetensors import SafetensorError, safe_open
from statetap_contract import CaptureSpec, MissingError, ModelFolder, UsageError
from statetap_producer.exporting.model_norm import ModelNorm

_EMBEDDING: Final = "embed_tokens.weight"
_HEAD: Final = "lm_head.weight"

#: What makes logits more than the head times the last hidden state, in the config or as weights.
_MORE_THAN_A_HEAD: Final = ("final_logit_softcapping", "logits_scaling", "logit_scale")
_HEAD_BIAS: Final = "lm_head.bias"

#: Rows that go through the whole head at a time; a row of logits is as wide as the vocabulary.
_HEAD_ROWS: Final = 512


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What a drafter shares with its target, in the dtype of the checkpoint."""

    #: [vocab_size, hidden_size].
    embedding: torch.Tensor
    #: [vocab_size, hidden_size]: logits are this times the last hidden state after the final norm.
    head: torch.Tensor
    #: The final norm, where the states were captured before it.
    norm: ModelNorm | None

    @classmethod
    def read(cls, folder: Path, spec: CaptureSpec) -> Self:
        """Reads the two from the folder of the model that the states were captured from.

        Raises:
            UsageError: kind ``model-differs``: not the model of the spec. Kind ``head-unknown``:
                more than a head makes logits of its last hidden states, or no weights have the
                usual names. Kind ``norm-unknown`` as ``ModelNorm.read``.
            MissingError: kind ``model-missing``.
        """
        model = ModelFolder.read(folder)
        if model.revision != spec.revision:
            raise UsageError(
                "model-differs",
                f"{folder} is revision {model.revision}, the states are of {spec.model}, revision "
                f"{spec.revision}; give the folder that the server loaded",
            )
        config = json.loads((folder / "config.json").read_text())
        config = config.get("text_config") or config
        for name in _MORE_THAN_A_HEAD:
            if config.get(name) not in {None, 1.0}:
                raise _unknown_head(folder, f"its config has {name}, which changes the logits")
        with _Weights(folder) as weights:
            if weights.find(_HEAD_BIAS) is not None:
                raise _unknown_head(folder, f"it has a {_HEAD_BIAS}")
            embedding = weights.find(_EMBEDDING)
            if embedding is None:
                raise _unknown_head(folder, f"none of its .safetensors holds an {_EMBEDDING}")
            head = weights.find(_HEAD)
        # A head that is not in the file is the embedding: save_pretrained leaves tied weights out.
        norm = ModelNorm.read(model) if spec.norm == "pre" else None
        return cls(embedding, embedding if head is None else head, norm)

    @torch.inference_mode()
    def next_tokens(self, last: torch.Tensor) -> torch.Tensor:
        """int64 [n], the token that the target thinks most likely, from [n, hidden_size]."""
        head = self.head.to(last.dtype)
        pieces = [(rows @ head.T).argmax(dim=1) for rows in torch.split(last, _HEAD_ROWS)]
        return torch.cat(pieces) if pieces else torch.empty(0, dtype=torch.int64)


class _Weights:
    """The weights of a model by the end of their names, which begin differently."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: list[Any] = []

    def __enter__(self) -> Self:
        for path in sorted(self._folder.glob("*.safetensors")):
            try:
                opened = safe_open(path, framework="pt")
                self._files.append(self._stack.enter_context(opened))
            except (OSError, SafetensorError) as error:
                raise MissingError(
                    "model-missing", f"{path} cannot be read ({error}); copy the model again"
                ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def find(self, suffix: str) -> torch.Tensor | None:
        """The tensor whose name ends in ``suffix``; None where there is none."""
        found = list(self._named(suffix))
        if len(found) > 1:
            names = ", ".join(name for _, name in found)
            raise _unknown_head(self._folder, f"it has several: {names}")
        if not found:
            return None
        file, name = found[0]
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def _named(self, suffix: str) -> Iterator[tuple[Any, str]]:
        for file in self._files:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if name == suffix or name.endswith(f".{suffix}"):
                    yield file, name


def _unknown_head(folder: Path, why: str) -> UsageError:
    return UsageError(
        "head-unknown",
        f"{folder} does not make its logits as Llama does: {why}; this example would train "
        "against other answers than the target gives",
    )
