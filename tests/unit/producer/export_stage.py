"""Shards, a model's folder and what plain h5py reads of them, for the tests of exports."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import save_file
from statetap_contract import CaptureSpec, ModelFolder
from statetap_store import Provenance, ShardWriter

HIDDEN = 16
VOCAB = 50
PROVENANCE = Provenance("demo", "w0", "here", "0.5.23", "0.1.0", (1, 3, 4))
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
EPS = 1e-5


def make_folder(
    path: Path, architecture: str = "LlamaForCausalLM", weight: torch.Tensor | None = None
) -> Path:
    """A model's folder that holds no weights but those of its final norm."""
    path.mkdir()
    config = {
        "architectures": [architecture],
        "num_hidden_layers": 8,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "max_position_embeddings": 256,
        "rms_norm_eps": EPS,
        "dtype": "bfloat16",
    }
    (path / "config.json").write_text(json.dumps(config))
    if weight is None:
        weight = torch.linspace(0.25, 4, HIDDEN)
    save_file({"model.norm.weight": weight.bfloat16()}, path / "model.safetensors")
    return path


def spec_of(model: Path, dtype: str = "bfloat16", norm: str = "post") -> CaptureSpec:
    return ModelFolder.read(model).spec((2, 4, 5), dtype, norm)


def post_states(model_weight: torch.Tensor, num_tokens: int, seed: int) -> torch.Tensor:
    """float32 [n, HIDDEN], as an RMSNorm with this weight gives them."""
    rows = torch.randn(num_tokens, HIDDEN, generator=torch.Generator().manual_seed(seed)) * 3
    return rows / (rows.pow(2).mean(1, keepdim=True) + EPS).sqrt() * model_weight


def store_samples(
    folder: Path,
    spec: CaptureSpec,
    lengths: Sequence[int],
    *,
    first: int = 0,
    samples_a_shard: int = 5,
) -> None:
    """Stores random samples; number k is the same in every folder."""
    folder.mkdir(exist_ok=True)
    weight = torch.linspace(0.25, 4, HIDDEN).bfloat16().float()
    shard_bytes = (1 << 20) + samples_a_shard * (1 << 13)
    for start in range(0, len(lengths), samples_a_shard):
        path = folder / f"w{first:03d}-{start:05d}.h5"
        with ShardWriter.create(path, spec, PROVENANCE, shard_bytes) as writer:
            for offset, num_tokens in enumerate(lengths[start : start + samples_a_shard]):
                number = first + start + offset
                generator = np.random.default_rng(number)
                ids = generator.integers(0, VOCAB, num_tokens).astype("<i4")
                mask = generator.integers(0, 2, num_tokens).astype("u1")
                mask[0] = 1
                aux = torch.from_numpy(generator.normal(size=(num_tokens, 3 * HIDDEN)))
                last = post_states(weight, num_tokens, number)
                states = torch.cat([aux.float(), last], 1).to(DTYPES[spec.dtype])
                key = hashlib.md5(b"%d" % number).hexdigest()  # noqa: S324 - no secret
                writer.append(key, ids, mask, states.view(torch.uint8).numpy())
            writer.commit()


@dataclass(frozen=True)
class Stored:
    """One sample as plain h5py reads it."""

    key: str
    #: int64 [n].
    ids: torch.Tensor
    mask: torch.Tensor
    #: [n, 3 * HIDDEN] and [n, HIDDEN], in the dtype of the shard.
    aux: torch.Tensor
    last: torch.Tensor


def stored_samples(folder: Path) -> Iterator[Stored]:
    """All samples by shard name, then row."""
    for path in sorted(folder.glob("*.h5")):
        with h5py.File(path) as shard:
            dtype = DTYPES[shard.attrs["dtype"]]
            for row in shard["index"]:
                if row["state"] != 1:
                    continue
                start, end = int(row["token_offset"]), int(row["token_offset"] + row["num_tokens"])
                raw = torch.from_numpy(shard["states"][start:end].view(np.uint8))
                states = raw.view(dtype).reshape(end - start, 4 * HIDDEN)
                yield Stored(
                    row["key"].decode(),
                    torch.from_numpy(shard["input_ids"][start:end].astype(np.int64)),
                    torch.from_numpy(shard["loss_mask"][start:end].astype(np.int64)),
                    states[:, : 3 * HIDDEN],
                    states[:, 3 * HIDDEN :],
                )


def same(first: Any, second: torch.Tensor) -> bool:
    """Equal in dtype, shape and every bit."""
    return (
        isinstance(first, torch.Tensor)
        and first.dtype == second.dtype
        and first.shape == second.shape
        and bytes(first.contiguous().view(torch.uint8).numpy())
        == bytes(second.contiguous().view(torch.uint8).numpy())
    )


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by name."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
