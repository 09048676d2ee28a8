"""Reads an export with NVIDIA ModelOpt's own loader. Runs in the environment of the trainers.

Usage: read_modelopt.py MODEL EXPORT OUT [EXPORT OUT ...]

In a file OUT, ``train/00000/input_ids`` and its like are the samples as the trainer gets them, in
the order of the files' names; ``batch/...`` are the first three, collated; ``vocabulary/...`` is
what lies in the draft model, ``draft/...`` what a step of training makes of the batch.
"""

from pathlib import Path
from typing import Any

import modelopt.torch.speculative as mtsp
import torch
from every_export import read_every
from modelopt.torch.speculative.eagle.utils import (
    EagleOfflineDataCollator,
    OfflineSupervisedDataset,
)
from modelopt.torch.speculative.plugins.hf_eagle import HFEagleModel
from transformers import AutoModelForCausalLM

#: Tokens of a collated sample: shorter than some, longer than others.
TRAIN_LENGTH = 16


def dataset_of(folder: Path) -> OfflineSupervisedDataset:
    """The data set of an offline training; its example script takes the files as they come."""
    files = sorted(str(path) for path in folder.rglob("*.pt"))
    return OfflineSupervisedDataset(files, answer_only_loss=True)


def draft_of(model: Path, mapping: Path) -> Any:
    """A target with a fresh EAGLE-3 draft, as ModelOpt's training script makes it."""
    num_tokens = len(torch.load(mapping))
    target = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    architecture = {"draft_vocab_size": num_tokens, "num_hidden_layers": 1}
    config = {"eagle_offline": True, "eagle_use_torch_compile": False, "eagle_ttt_steps": 3}
    mtsp.convert(target, [("eagle", config | {"eagle_architecture_config": architecture})])
    HFEagleModel.load_draft_vocab_cache(target, str(mapping))
    return target.train()


def step(draft: Any, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """One step of training: the loss, and the gradient of the layer that fuses the aux states."""
    outputs = batch["base_model_outputs"]
    in_float32 = {name: as_float32(value) for name, value in outputs.items()}
    loss = draft(**batch | {"base_model_outputs": in_float32}).loss
    loss.backward()
    return {"loss": loss.detach(), "fc_gradient": draft.eagle_module.fc.weight.grad}


def as_float32(value: Any) -> Any:
    """The draft is trained in the target's dtype, which here is float32."""
    return value.float() if isinstance(value, torch.Tensor) else value


def tensors_of(export: Path, model: Path) -> dict[str, torch.Tensor]:
    """Reads train/ and, if there is one, val/."""
    tensors: dict[str, torch.Tensor] = {}
    for folder in (export / "train", export / "val"):
        if folder.is_dir():
            dataset = dataset_of(folder)
            for number in range(len(dataset)):
                for name, value in dataset[number].items():
                    tensors[f"{folder.name}/{number:05d}/{name}"] = torch.as_tensor(value)
    train = dataset_of(export / "train")
    collated = EagleOfflineDataCollator(TRAIN_LENGTH)([train[number] for number in range(3)])
    batch = collated | collated["base_model_outputs"]
    del batch["base_model_outputs"]
    tensors |= {f"batch/{name}": torch.as_tensor(value) for name, value in batch.items()}
    draft = draft_of(model, export / "d2t.pt")
    tensors["vocabulary/d2t"] = draft.eagle_module.d2t
    tensors |= {f"draft/{name}": tensor for name, tensor in step(draft, collated).items()}
    return tensors


if __name__ == "__main__":
    read_every(tensors_of)
