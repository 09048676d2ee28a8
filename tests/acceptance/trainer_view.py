"""TrainerView: what a trainer must be given of a sample, written down by hand for each trainer."""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from .peer_samples import PeerSample

Tensors = dict[str, torch.Tensor]

#: Sizes in the scripts under peers/: tokens of a collated sample, rows of a packed batch.
_MODELOPT_TRAIN_LENGTH: Final = 16
_SPECULATORS_PACKED: Final = 64

#: What ModelOpt puts where nothing is to be predicted.
_IGNORED: Final = -100


def specforge_sample(sample: PeerSample) -> Tensors:
    """A batch of one. Nothing follows the last token, so it drops that from the loss."""
    loss_mask = sample.loss_mask.clone()
    loss_mask[-1] = 0
    return {
        "input_ids": sample.input_ids[None],
        "attention_mask": torch.ones_like(sample.input_ids)[None],
        "loss_mask": loss_mask[None],
        "hidden_state": sample.aux[None],
        "target": sample.last[None],
    }


def speculators_sample(sample: PeerSample) -> Tensors:
    """Without a batch axis: samples are packed one after another."""
    return {
        "input_ids": sample.input_ids,
        "loss_mask": sample.loss_mask,
        "hidden_states": sample.aux,
        "verifier_last_hidden_states": sample.last,
        "lengths": torch.tensor([len(sample.input_ids)]),
        "position_ids": torch.arange(len(sample.input_ids)),
    }


def modelopt_sample(sample: PeerSample) -> Tensors:
    """Labels are the tokens that follow."""
    ignored = torch.tensor([_IGNORED])
    return {
        "input_ids": sample.input_ids,
        "attention_mask": torch.ones_like(sample.input_ids),
        "loss_mask": sample.loss_mask,
        "labels": torch.cat([sample.input_ids[1:], ignored]),
        "aux_hidden_states": sample.aux,
        "base_model_hidden_states": sample.last,
        "base_hidden_prenorm": torch.tensor(False),
    }


def angelslim_sample(sample: PeerSample) -> Tensors:
    """A batch of one; its ``hidden_states`` are the aux states."""
    return {
        "input_ids": sample.input_ids[None],
        "attention_mask": torch.ones_like(sample.input_ids)[None],
        "loss_mask": sample.loss_mask[None],
        "hidden_states": sample.aux[None],
        "target_hiddens": sample.last[None],
    }


def padded_batch(samples: Sequence[Tensors]) -> Tensors:
    """Batches of one joined, zeros on the right: SpecForge and AngelSlim."""
    length = max(sample["input_ids"].shape[1] for sample in samples)
    return {
        name: torch.cat([_padded(sample[name][0], length)[None] for sample in samples])
        for name in samples[0]
    }


def modelopt_batch(samples: Sequence[Tensors]) -> Tensors:
    """Cut or filled up with zeros to the length of the training."""
    batch = {
        name: torch.stack([_padded(sample[name], _MODELOPT_TRAIN_LENGTH) for sample in samples])
        for name in samples[0]
        if name != "base_hidden_prenorm"
    }
    return batch | {"base_hidden_prenorm": samples[0]["base_hidden_prenorm"]}


def speculators_batch(samples: Sequence[Tensors]) -> Tensors:
    """Shifted, so that a row holds a token, the aux states before it and the last state after it.

    Then packed into one row, with the number of the sample that each place belongs to.
    """
    before = {"hidden_states"}
    shifted = [
        {
            name: tensor[:-1] if name in before else tensor[1:]
            for name, tensor in sample.items()
            if name != "lengths"
        }
        for sample in samples
    ]
    lengths = torch.tensor([len(sample["input_ids"]) for sample in shifted])
    documents = torch.repeat_interleave(torch.arange(len(samples)), lengths)
    missing = torch.full((_SPECULATORS_PACKED - len(documents),), -1)
    batch = {
        name: _padded(torch.cat([sample[name] for sample in shifted]), _SPECULATORS_PACKED)[None]
        for name in shifted[0]
    }
    return batch | {"document_ids": torch.cat([documents, missing])[None]}


#: Trainer -> what it must be given of a sample, and of several.
SAMPLE_OF: Final[dict[str, Callable[[PeerSample], Tensors]]] = {
    "specforge": specforge_sample,
    "speculators": speculators_sample,
    "modelopt": modelopt_sample,
    "angelslim": angelslim_sample,
}
BATCH_OF: Final[dict[str, Callable[[Sequence[Tensors]], Tensors]]] = {
    "specforge": padded_batch,
    "speculators": speculators_batch,
    "modelopt": modelopt_batch,
    "angelslim": padded_batch,
}


def differences(found: Sequence[Tensors], expected: Sequence[Tensors]) -> list[str]:
    """What is not the same, byte for byte; nothing where all is."""
    if len(found) != len(expected):
        return [f"{len(found)} samples instead of {len(expected)}"]
    return [
        f"{name} of sample {number}: {_described(one.get(name))}, not {_described(other.get(name))}"
        for number, (one, other) in enumerate(zip(found, expected, strict=True))
        for name in sorted(one.keys() | other.keys())
        if not _is_same(one.get(name), other.get(name))
    ]


def _padded(tensor: torch.Tensor, length: int) -> torch.Tensor:
    padded = tensor.new_zeros((length, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor[:length]
    return padded


def _is_same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(one, other)


def _described(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{tensor.dtype} {list(tensor.shape)} {tensor.flatten()[:4].tolist()}"
