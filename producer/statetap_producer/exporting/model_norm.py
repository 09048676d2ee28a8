"""ModelNorm: the final norm of a model, from its folder alone; no model is loaded."""

import hashlib
import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import torch
from safetensors import SafetensorError, safe_open
from statetap_contract import MissingError, ModelFolder, UsageError

#: Architectures, without ``ForCausalLM`` and the like, whose final norm multiplies by its weight.
_PLAIN: Final = frozenset(
    {
        *("Apertus", "Arcee", "DeepseekV2", "DeepseekV3", "Dots1", "Ernie4_5", "Ernie4_5_Moe"),
        *("Exaone4", "Glm", "Glm4", "Glm4Moe", "GptOss", "Granite", "HunYuanDenseV1"),
        *("HunYuanMoEV1", "KimiK25", "KimiLinear", "Llama", "Llama4", "LongcatFlash"),
        *("MiniMax", "MiniMaxM2", "Ministral", "Ministral3", "Mistral", "Mistral3", "Mixtral"),
        *("Olmo2", "Olmo3", "Phi3", "Qwen2", "Qwen2Moe", "Qwen2_5_VL", "Qwen3", "Qwen3Moe"),
        *("Qwen3VL", "Qwen3VLMoe", "SeedOss", "SmolLM3"),
    }
)
#: Those that multiply by one more than it.
_ONE_MORE: Final = frozenset(
    {"Gemma", "Gemma2", "Gemma3", "Qwen3Next", "Qwen3_5", "Qwen3_5Moe", "VaultGemma"}
)
_ENDINGS: Final = ("ForCausalLM", "ForConditionalGeneration")

#: Where the weight may be; multimodal models have a language model inside.
_WEIGHT_NAMES: Final = frozenset(
    {
        "model.norm.weight",
        "model.language_model.norm.weight",
        "language_model.model.norm.weight",
    }
)

#: Above this mean square a state was not divided by its root mean square: each element was rounded
#: twice, by at most 2^-8 of itself, and a square doubles that.
_MOST_SQUARE: Final = 1 + 2.0**-5


@dataclass(frozen=True, eq=False)
class ModelNorm:
    """RMSNorm: ``scale * x / sqrt(mean(x ** 2) + eps)``."""

    #: float32 [hidden_size].
    scale: torch.Tensor
    eps: float

    @classmethod
    def read(cls, model: ModelFolder) -> Self:
        """Reads the weight from the safetensors files and eps from the config.

        Raises:
            UsageError: kind ``norm-unknown``: not an architecture whose norm is known, or no such
                weight or eps.
            MissingError: kind ``model-unloadable``: files that cannot be read.
        """
        family = model.architecture
        for ending in _ENDINGS:
            family = family.removesuffix(ending)
        if family not in _PLAIN | _ONE_MORE:
            raise UsageError(
                "norm-unknown",
                f"the final norm of {model.architecture} is not known here, so its last hidden "
                "states cannot be converted: export for a trainer that reads them as they are, or "
                "capture with the other --norm",
            )
        if not any(model.path.glob("*.safetensors")):
            raise UsageError(
                "norm-unknown",
                f"the final norm is read from safetensors files only, and {model.path} has none: "
                "give a folder of the same model as safetensors",
            )
        found = list(_weights(model))
        if len(found) != 1 or found[0].shape != (model.hidden_size,):
            raise UsageError(
                "norm-unknown",
                f"the safetensors files in {model.path} do not hold the weight of one final norm "
                f"of {model.hidden_size:,} elements: copy all of the model's files there",
            )
        scale = found[0].float()
        return cls(scale + 1 if family in _ONE_MORE else scale, _eps(model))

    def apply(self, rows: torch.Tensor) -> torch.Tensor:
        """float32 [n, hidden_size] after the norm, from those before it."""
        mean_square = rows.square().mean(1, keepdim=True)
        return rows * torch.rsqrt(mean_square + self.eps) * self.scale

    @cached_property
    def has_zeros(self) -> bool:
        """Whether a weight is zero, so that the norm takes elements away."""
        return not bool(self.scale.all())

    @cached_property
    def _inverse(self) -> torch.Tensor:
        """float32 [hidden_size], zero where the weight is."""
        is_kept = self.scale != 0
        return torch.where(is_kept, 1 / self.scale.where(is_kept, 1), 0)

    @property
    def digest(self) -> str:
        """32 hex digits that stand for weight and eps."""
        return hashlib.blake2b(
            self.scale.numpy().tobytes() + struct.pack("<d", self.eps), digest_size=16
        ).hexdigest()

    def undo(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """States that this norm turns into the given ones, float32 [n, hidden_size] both.

        The norm takes away how large a state was, so these are not the model's own but multiples
        of them. By how much their mean square falls short of one tells the part that eps had, and
        what a weight of zero took away: they are scaled so that the norm gives the very same
        again, but for a share of ``eps / 2`` at most, with zero for an element that was taken away.

        Returns:
            The states, and float32 [n], the part of each row's mean square that was taken away:
            next to nothing in a model's own states where no weight is zero. Not a number, or
            infinite, where an element of the row is or where the mean square is beyond float32.

        Raises:
            ValueError: this norm gives no such states.
        """
        if self.has_zeros and rows[:, self.scale == 0].any():
            raise ValueError("an element is not zero where the norm's weight is")
        directions = rows * self._inverse
        lengths = torch.linalg.vector_norm(directions, dim=1)
        mean_square = lengths.square() / rows.shape[1]
        if (most := float(mean_square.max())) > _MOST_SQUARE and math.isfinite(most):
            raise ValueError(f"a mean square is {most:.3g}, above 1")
        taken_away = 1 - mean_square
        # s * d / sqrt(s^2 * mean(d^2) + eps) = d, solved for s.
        factors = torch.sqrt(self.eps / taken_away.clamp_min(self.eps))
        return directions.mul_(factors[:, None]), taken_away


def _weights(model: ModelFolder) -> Iterator[torch.Tensor]:
    for file in sorted(model.path.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                for name in sorted(_WEIGHT_NAMES.intersection(tensors.keys())):
                    yield tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise MissingError(
                "model-unloadable", f"{file} cannot be read ({error}): copy the model again"
            ) from error


def _eps(model: ModelFolder) -> float:
    config = json.loads((model.path / "config.json").read_bytes())
    eps = (config.get("text_config") or config).get("rms_norm_eps")
    if eps is None:
        raise UsageError(
            "norm-unknown",
            f"{Path(model.path) / 'config.json'} has no 'rms_norm_eps', which the final norm "
            "needs: copy the model's config.json again",
        )
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise UsageError(
            "norm-unknown",
            f"'rms_norm_eps' in {Path(model.path) / 'config.json'} is {eps!r}, not a small number: "
            "copy the model's config.json again",
        )
    return eps
