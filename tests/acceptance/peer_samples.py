"""The samples that trainers are given in the tests, and what plain h5py says of them."""

import math
from array import array
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

import h5py
import numpy as np
import torch
from statetap_contract import CaptureSpec, ModelFolder, Prompt, sample_key
from statetap_store import Provenance, ShardWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from .reference import Reference

#: Boundary indices of a model of 8 layers that all four trainers would choose: 2, n/2 and n - 3.
LAYERS: Final = (2, 4, 5)
HIDDEN_SIZE: Final = 64
VOCABULARY: Final = 512

#: From one token to more than a thousand.
LENGTHS: Final = (17, 1, 3, 2, 16, 31, 64, 65, 127, 300, 700, 1200, *range(5, 29))

_SHARD_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class PeerSample:
    """A sample as it lies in a shard."""

    #: int64 [T], and 0 or 1 for each, as int64 [T].
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    #: bfloat16 [T, 3 * hidden] and [T, hidden].
    aux: torch.Tensor
    last: torch.Tensor

    @classmethod
    def read_all(cls, shards: Path) -> list[Self]:
        """All samples of a folder of shards, with nothing but h5py and the format's own words."""
        samples = []
        for path in sorted(shards.glob("*.h5")):
            with h5py.File(path) as shard:
                for row in shard["index"]:
                    if row["state"] != 1:
                        continue
                    tokens = slice(
                        int(row["token_offset"]), int(row["token_offset"] + row["num_tokens"])
                    )
                    states = torch.from_numpy(shard["states"][tokens]).view(torch.bfloat16)
                    samples.append(
                        cls(
                            torch.from_numpy(shard["input_ids"][tokens].astype(np.int64)),
                            torch.from_numpy(shard["loss_mask"][tokens].astype(np.int64)),
                            states[:, :-HIDDEN_SIZE].contiguous(),
                            states[:, -HIDDEN_SIZE:].contiguous(),
                        )
                    )
        return samples


@dataclass(frozen=True, slots=True)
class PeerData:
    """A model, and shards of its states."""

    #: A checkpoint in several files, with the index that SpecForge looks for.
    model: Path
    #: Shards whose last hidden state has had the final norm, and the same ones before it.
    post: Path
    pre: Path
    #: What HF transformers says of each prompt's last hidden state after the norm, float32.
    exact_post: list[torch.Tensor]

    @classmethod
    def make(cls, tiny_model: Path, folder: Path) -> Self:
        """Computes states with HF transformers and stores them as a worker does."""
        model = folder / "model"
        loaded = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
        loaded.save_pretrained(model, max_shard_size="500KB")
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(model)
        reference = Reference(model)
        described = ModelFolder.read(model)
        prompts = _prompts()
        exact: dict[str, list[torch.Tensor]] = {
            norm: [reference.states(list(p.token_ids), LAYERS, norm) for p in prompts]
            for norm in ("post", "pre")
        }
        for norm, states in exact.items():
            _store(folder / norm, described.spec(LAYERS, "bfloat16", norm), prompts, states)
        return cls(
            model,
            folder / "post",
            folder / "pre",
            [state[:, -HIDDEN_SIZE:] for state in exact["post"]],
        )


def _prompts() -> list[Prompt]:
    """Prompts of all lengths, no two alike, masked in different ways."""
    randomness = np.random.default_rng(0)
    prompts = []
    for number, length in enumerate(LENGTHS):
        # As in text, some tokens are much more frequent than others.
        ids = (VOCABULARY * randomness.random(length) ** 3).astype(np.int32)
        prompts.append(Prompt(array("i", ids.tobytes()), _spans(number, length)))
    return prompts


def _spans(number: int, length: int) -> tuple[tuple[int, int], ...]:
    """All, nothing, the end, the first and last token, every second one, or two turns."""
    patterns: tuple[tuple[tuple[int, int], ...], ...] = (
        ((0, length),),
        (),
        ((length // 2, length),),
        ((0, 1), (length - 1, length)),
        tuple((start, start + 1) for start in range(0, length, 2)),
        ((length // 5, 2 * length // 5), (3 * length // 5, 4 * length // 5)),
    )
    spans = [span for span in patterns[number % len(patterns)] if span[0] < span[1]]
    touching = any(left[1] >= right[0] for left, right in pairwise(spans))
    return ((0, length),) if touching else tuple(spans)


def _store(
    folder: Path, spec: CaptureSpec, prompts: list[Prompt], states: list[torch.Tensor]
) -> None:
    """Two workers' shards."""
    folder.mkdir()
    half = math.ceil(len(prompts) / 2)
    for worker, part in (("w0", slice(0, half)), ("w1", slice(half, None))):
        provenance = Provenance("peers", worker, "here", "0.5.23", "0.1.0", LAYERS)
        path = folder / f"{worker}-00001.h5"
        with ShardWriter.create(path, spec, provenance, _SHARD_BYTES) as writer:
            for prompt, rows in zip(prompts[part], states[part], strict=True):
                writer.append(
                    sample_key(spec.digest, prompt),
                    np.frombuffer(prompt.token_ids, np.int32),
                    np.frombuffer(prompt.loss_mask(), np.uint8),
                    rows.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(np.uint16),
                )
            writer.commit()
