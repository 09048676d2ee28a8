"""Reads an export with AngelSlim's own loader. Runs in the environment of the trainers.

Usage: read_angelslim.py MODEL EXPORT OUT [EXPORT OUT ...]

In a file OUT, ``train/00000/input_ids`` and its like are the samples as the trainer gets them;
``batch/...`` are the first three, collated; ``vocabulary/...`` is what lies in its draft model.
"""

import importlib.util
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from every_export import read_every
from transformers import LlamaConfig

#: Packages whose ``__init__`` is left out. That of ``angelslim`` cannot be run: as published, 0.5.0
#: imports a package that is not in its wheel. The modules below them are the wheel's own.
LEFT_OUT = (
    "angelslim",
    "angelslim.compressor",
    "angelslim.compressor.speculative",
    "angelslim.compressor.speculative.train",
    "angelslim.compressor.speculative.train.data",
    "angelslim.compressor.speculative.train.data.dataset_builder",
    "angelslim.compressor.speculative.train.models",
    "angelslim.compressor.speculative.train.models.draft",
)
TRAIN = LEFT_OUT[3]


def leave_out() -> None:
    """Puts empty packages in their places."""
    spec = importlib.util.find_spec("angelslim")
    root = Path((spec.submodule_search_locations or [""])[0]) if spec else Path()
    for name in LEFT_OUT:
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def vocabulary_of(file: Path, model: Path) -> dict[str, torch.Tensor]:
    """What ends up in the draft model's buffers."""
    config = LlamaConfig.from_pretrained(model)
    config.num_hidden_layers = 1
    config.draft_vocab_size = len(torch.load(file)["d2t"])
    draft = import_module(f"{TRAIN}.models.draft.llama_eagle3").Eagle3LlamaForCausalLM(config)
    draft.load_vocab_mapping(str(file))
    return {"vocabulary/d2t": draft.d2t, "vocabulary/t2d": draft.t2d}


def tensors_of(export: Path, model: Path) -> dict[str, torch.Tensor]:
    """Reads train/ and, if there is one, val/."""
    module = import_module(f"{TRAIN}.data.dataset_builder.offline_dataset_builder")
    builder = module.OfflineLLMDatasetBuilder()
    tensors: dict[str, torch.Tensor] = {}
    for folder in (export / "train", export / "val"):
        if folder.is_dir():
            dataset = builder.build_dataset(str(folder))
            for number in range(len(dataset)):
                for name, tensor in dataset[number].items():
                    tensors[f"{folder.name}/{number:05d}/{name}"] = tensor
    train = builder.build_dataset(str(export / "train"))
    batch = builder.get_data_collator()([train[number] for number in range(3)])
    tensors |= {f"batch/{name}": tensor for name, tensor in batch.items()}
    tensors |= vocabulary_of(export / "train" / "vocab_mapping.pt", model)
    return tensors


if __name__ == "__main__":
    leave_out()
    read_every(tensors_of)
