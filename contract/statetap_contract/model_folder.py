"""Facts of a model folder that producer and server must see alike."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract.errors import MissingError, UsageError
from statetap_contract.spec import DTYPE_BYTES, CaptureSpec

#: Multimodal models keep the language model's settings in a sub-object of this name.
_TEXT_CONFIG: Final = "text_config"

_WEIGHT_SUFFIXES: Final = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk, as ``save_pretrained`` writes it."""

    path: Path
    name: str
    revision: str
    #: Class name in transformers and in SGLang. It decides how SGLang counts layers.
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads ``config.json``; no weights are loaded.

        Raises:
            MissingError: kind ``model-missing``: no such folder, or no config.json or weights in
                it.
            UsageError: kind ``model-unreadable``: the config is not one of a language model.
        """
        path = path.resolve()
        config_file = path / "config.json"
        if not config_file.is_file():
            raise MissingError(
                "model-missing",
                f"{path} holds no config.json; give the folder of a model that was saved with "
                "save_pretrained or downloaded from a hub",
            )
        weights = sorted(f for f in path.iterdir() if f.suffix in _WEIGHT_SUFFIXES)
        if not weights:
            raise MissingError(
                "model-missing", f"{path} holds no weights; copy the model's .safetensors there"
            )
        raw = config_file.read_bytes()
        try:
            config = json.loads(raw)
            text: Mapping[str, object] = config.get(_TEXT_CONFIG) or config
            dtype = text.get("dtype") or text.get("torch_dtype") or "bfloat16"
            return cls(
                path=path,
                name=path.name,
                revision=_fingerprint(raw, weights),
                architecture=_architecture(config),
                num_layers=_positive(text, "num_hidden_layers"),
                hidden_size=_positive(text, "hidden_size"),
                vocab_size=_positive(text, "vocab_size"),
                context_length=_positive(text, "max_position_embeddings"),
                dtype=_known_dtype(dtype),
            )
        except OSError as error:
            raise MissingError(
                "model-missing",
                f"{error.filename} cannot be read ({error.strerror}); copy the model again",
            ) from error
        except (ValueError, AttributeError) as error:
            raise UsageError(
                "model-unreadable",
                f"{config_file} does not describe a language model: {error}",
            ) from error

    @property
    def default_layers(self) -> tuple[int, ...]:
        """The boundary indices EAGLE-3 is trained on by default.

        Source: every SGLang model file's ``set_eagle3_layers_to_capture`` without ids.
        """
        return (2, self.num_layers // 2, self.num_layers - 3)

    def spec(
        self,
        layers: tuple[int, ...] | None = None,
        dtype: str | None = None,
        norm: str = "post",
    ) -> CaptureSpec:
        """The capture spec of this model.

        Args:
            layers: boundary indices, in any order; None for EAGLE-3's own.
            dtype: the dtype the server computes in; None for the checkpoint's.
            norm: ``post`` or ``pre``: whether the last hidden state has had the final norm.

        Raises:
            UsageError: kind ``layers-impossible`` or ``dtype-unknown``.
        """
        chosen = tuple(sorted(layers if layers is not None else self.default_layers))
        # Boundary num_layers is the last layer's output, which SGLang cannot capture as an aux
        # layer; boundary 0 is the embedding.
        possible = range(1, self.num_layers)
        if not chosen or len(set(chosen)) < len(chosen) or any(k not in possible for k in chosen):
            raise UsageError(
                "layers-impossible",
                f"layers {list(chosen)} cannot be captured from {self.name}; choose different "
                f"boundary indices from 1 to {self.num_layers - 1}",
            )
        dtype = dtype or self.dtype
        if dtype not in DTYPE_BYTES:
            raise UsageError(
                "dtype-unknown", f"dtype {dtype!r} is unknown; use one of {', '.join(DTYPE_BYTES)}"
            )
        return CaptureSpec(
            model=self.name,
            revision=self.revision,
            layers=chosen,
            norm=norm,
            hidden_size=self.hidden_size,
            dtype=dtype,
        )


def _fingerprint(config: bytes, weights: list[Path]) -> str:
    """Digest of the config and of the weight files' names, sizes and safetensors headers.

    It costs no read of the weights, yet two checkpoints that differ in shape, dtype, sharding or
    config differ in it. Weights fine-tuned in place, with all of these unchanged, do not.
    """
    digest = hashlib.blake2b(config, digest_size=16)
    for file in weights:
        digest.update(f"\0{file.name}\0{file.stat().st_size}".encode())
        if file.suffix == ".safetensors":
            digest.update(_safetensors_header(file))
    return digest.hexdigest()


def _safetensors_header(file: Path) -> bytes:
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        return stream.read(min(size, 64 << 20))


def _architecture(config: Mapping[str, object]) -> str:
    """The first of the list, as SGLang takes it; transformers never writes a second."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ValueError(f"'architectures' is {architectures!r}")
    first = architectures[0]
    if not isinstance(first, str) or not first:
        raise ValueError(f"'architectures' is {architectures!r}")
    return first


def _positive(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value < 1:
        raise ValueError(f"{name!r} is {value!r}")
    return value


def _known_dtype(value: object) -> str:
    if not isinstance(value, str) or value not in DTYPE_BYTES:
        raise ValueError(f"'dtype' is {value!r}, none of {', '.join(DTYPE_BYTES)}")
    return value
