"""Reads an export with speculators' own loader. Runs in the environment of the trainers.

Usage: read_speculators.py MODEL EXPORT OUT [EXPORT OUT ...]

In a file OUT, ``train/00000/input_ids`` and its like are the samples as the trainer gets them,
``val/...`` those for validation; one that it would leave out is missing. ``batch/...`` are the
first three, shifted and packed by its own code; ``draft/...`` is what a step of training makes of
them; ``normed/...`` are all last states of training after the norm that its draft model has of the
target; ``vocabulary/...`` is what lies in the draft model, and what its code makes of the counts.
"""

import json
from argparse import Namespace
from pathlib import Path

import torch
from every_export import read_every
from speculators.losses import resolve_loss_config
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.models.eagle3.data import shift_batch
from speculators.train.cli import parse_vocab_mappings
from speculators.train.data import ArrowDataset, CollateFn
from speculators.train.recovery import SampleUnavailable
from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution
from transformers import AutoConfig

MAX_LENGTH = 4096
#: Rows of the packed batch.
PACKED = 64
TTT_STEPS = 3
#: What the exports were made with.
DRAFT_VOCABULARY = 64
LAST = "verifier_last_hidden_states"


def tensors_of(export: Path, model: Path) -> dict[str, torch.Tensor]:
    """Reads what is for training and, where the export tells of a ratio, what is for validation."""
    ratio = json.loads((export / "export.json").read_text()).get("train_data_ratio", 1)
    tensors: dict[str, torch.Tensor] = {}
    train = ArrowDataset(MAX_LENGTH, export, on_missing="raise", train_ratio=ratio, split="train")
    datasets = {"train": train}
    if ratio < 1:
        datasets["val"] = ArrowDataset(
            MAX_LENGTH, export, on_missing="raise", train_ratio=ratio, split="val"
        )
    for split, dataset in datasets.items():
        for number in range(len(dataset)):
            sample = dataset[number]
            if not isinstance(sample, SampleUnavailable):
                for name, tensor in sample.items():
                    tensors[f"{split}/{number:05d}/{name}"] = tensor
    hidden_size = AutoConfig.from_pretrained(model).hidden_size
    collate = CollateFn(PACKED, hidden_size, preprocess=shift_batch)
    batch = collate([train[number] for number in range(3)])
    assert batch.pop("error_records") == 0
    tensors |= {f"batch/{name}": tensor for name, tensor in batch.items()}
    draft = draft_of(export, model).to(torch.bfloat16)
    tensors |= {f"draft/{name}": tensor for name, tensor in step(draft, batch).items()}
    last = torch.cat(
        [tensor for name, tensor in tensors.items() if name.startswith("train/") and LAST in name]
    )
    tensors["normed/bfloat16"] = draft.verifier_norm(last)
    tensors["normed/float32"] = draft_of(export, model).verifier_norm(last.float())
    frequencies = torch.load(export / "token_freq.pt", weights_only=True)
    own_d2t, _ = build_vocab_mappings_from_distribution(frequencies, len(draft.d2t), len(draft.t2d))
    tensors |= {"vocabulary/d2t": draft.d2t, "vocabulary/t2d": draft.t2d}
    tensors["vocabulary/own_d2t"] = own_d2t
    return tensors


def draft_of(export: Path, model: Path) -> Eagle3DraftModel:
    """A fresh EAGLE-3 draft for the target, with the export's vocabulary mapping."""
    layer = AutoConfig.from_pretrained(model)
    layer.num_hidden_layers = 1
    d2t, t2d, num_tokens = parse_vocab_mappings(
        Namespace(
            data_path=export,
            draft_vocab_size=DRAFT_VOCABULARY,
            verifier_name_or_path=str(model),
            trust_remote_code=False,
            **dict.fromkeys(("d2t_path", "t2d_path", "token_freq_path")),
        )
    )
    torch.manual_seed(0)
    return Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        t2d=t2d,
        d2t=d2t,
        verifier_name_or_path=str(model),
        draft_vocab_size=num_tokens,
        norm_before_residual=True,
        draft_attn_impl="eager",
        ttt_steps=TTT_STEPS,
    )


def step(draft: Eagle3DraftModel, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One step of training: the loss, and the gradient of the layer that fuses the aux states."""
    _, loss, _ = draft(
        **batch, ttt_steps=TTT_STEPS, loss_config=resolve_loss_config("kl_div", "eager")
    )
    loss.backward()
    return {"loss": loss, "fc_gradient": draft.fc.weight.grad}


if __name__ == "__main__":
    read_every(tensors_of)
