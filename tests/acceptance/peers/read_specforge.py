"""Reads an export with SpecForge's own loader. Runs in the environment of the trainers.

Usage: read_specforge.py MODEL EXPORT OUT [EXPORT OUT ...]

In a file OUT, ``train/00000/input_ids`` and its like are the samples as the trainer gets them;
``batch/...`` are the first three, collated; ``teacher/...`` is what its copy of the target's head
makes of them; ``vocabulary/...`` is what lies in the draft model, and what it counts itself.
"""

from pathlib import Path

import torch
from every_export import read_every
from specforge.algorithms.eagle3.data import (
    build_offline_collator,
    build_offline_normalizer,
    build_offline_reader,
)
from specforge.core.compact_teacher import (
    compute_target_from_hidden,
    validate_vocab_mapping_consistency,
)
from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3
from specforge.modeling.target.target_head import TargetHead
from specforge.runtime.data_plane.feature_dataloader import FeatureDataLoader
from specforge.runtime.data_plane.feature_store import LocalFeatureStore
from specforge.training.vocab_mapping import count_effective_feature_tokens
from transformers import LlamaConfig

MAX_LENGTH = 4096
TTT_LENGTH = 7


def loader_of(folder: Path, batch_size: int) -> FeatureDataLoader:
    """The loader of an offline EAGLE-3 training, put together as ``specforge.launch`` does."""
    reader = build_offline_reader(
        str(folder), run_id="peers", ttt_length=TTT_LENGTH, max_len=MAX_LENGTH
    )
    return FeatureDataLoader(
        LocalFeatureStore("peers"),
        refs=reader.read(),
        batch_size=batch_size,
        collate_fn=build_offline_collator(),
        per_sample_transform=build_offline_normalizer(MAX_LENGTH, ttt_length=TTT_LENGTH),
    )


def draft_of(model: Path, mapping: Path) -> LlamaForCausalLMEagle3:
    """A fresh EAGLE-3 draft for the target, with the export's vocabulary mapping."""
    config = LlamaConfig.from_pretrained(model)
    config.num_hidden_layers = 1
    config.draft_vocab_size = len(torch.load(mapping)["d2t"])
    draft = LlamaForCausalLMEagle3(config)
    draft.load_vocab_mapping(str(mapping))
    validate_vocab_mapping_consistency(draft.t2d, draft.d2t)
    return draft


def counts_of(export: Path, vocab_size: int) -> torch.Tensor:
    """How often each token is in the loss of the files for training, as it counts them."""
    counts = count_effective_feature_tokens(str(export / "train"), target_vocab_size=vocab_size)
    return torch.tensor([counts[token] for token in range(vocab_size)])


def tensors_of(export: Path, model: Path) -> dict[str, torch.Tensor]:
    """Reads train/ and, if there is one, val/."""
    tensors: dict[str, torch.Tensor] = {}
    for folder in (export / "train", export / "val"):
        if folder.is_dir():
            for number, batch in enumerate(loader_of(folder, 1)):
                for name, tensor in batch.tensors.items():
                    tensors[f"{folder.name}/{number:05d}/{name}"] = tensor
    batch = next(iter(loader_of(export / "train", 3))).tensors
    tensors |= {f"batch/{name}": tensor for name, tensor in batch.items()}
    draft = draft_of(model, export / "vocab_mapping" / "vocab_mapping.pt")
    tensors |= {"vocabulary/d2t": draft.d2t, "vocabulary/t2d": draft.t2d}
    tensors["vocabulary/counts"] = counts_of(export, len(draft.t2d))
    _, _, tensors["teacher/target_token_ids"], _ = compute_target_from_hidden(
        batch["target"],
        TargetHead.from_pretrained(str(model)).fc.weight,
        draft.t2d,
        batch["loss_mask"][..., None],
    )
    return tensors


if __name__ == "__main__":
    read_every(tensors_of)
