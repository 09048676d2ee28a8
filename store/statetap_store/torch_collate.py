"""Samples of different lengths as one padded batch."""

import math
from collections.abc import Sequence
from typing import TypedDict

import torch
from torch.utils.data import get_worker_info

from statetap_store.torch_dataset import TensorSample


class TensorBatch(TypedDict):
    """B samples, padded on the right with zeros to the T tokens of the longest."""

    #: Sample keys.
    keys: list[str]
    #: int64 [B], the tokens of each sample.
    num_tokens: torch.Tensor
    #: int64 [B, T].
    input_ids: torch.Tensor
    #: int64 [B, T], 1 for tokens, 0 for padding.
    attention_mask: torch.Tensor
    #: int64 [B, T], 1 where the loss is taken; never in the padding.
    loss_mask: torch.Tensor
    #: [B, T, num_layers * hidden_size] and [B, T, hidden_size].
    aux_states: torch.Tensor
    last_states: torch.Tensor


def collate(samples: Sequence[TensorSample]) -> TensorBatch:
    """Pads samples to a batch; for ``DataLoader(collate_fn=collate)``.

    The batch's memory is taken once, and each state is copied once, in a DataLoader's worker too.
    """
    num_tokens = torch.tensor([len(sample["input_ids"]) for sample in samples])
    places = torch.arange(int(num_tokens.max()))
    return TensorBatch(
        keys=[sample["key"] for sample in samples],
        num_tokens=num_tokens,
        input_ids=_padded([sample["input_ids"] for sample in samples]),
        attention_mask=(places < num_tokens[:, None]).long(),
        loss_mask=_padded([sample["loss_mask"] for sample in samples]),
        aux_states=_padded([sample["aux_states"] for sample in samples]),
        last_states=_padded([sample["last_states"] for sample in samples]),
    )


def _padded(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors [n, ...] as one [B, T, ...]."""
    first = tensors[0]
    longest = max(map(len, tensors))
    batch = _empty((len(tensors), longest, *first.shape[1:]), first.dtype)
    for row, tensor in zip(batch, tensors, strict=True):
        row[: len(tensor)] = tensor
        row[len(tensor) :] = 0
    return batch


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype)
    # A worker hands a batch over in shared memory. What is made there need not be copied there.
    num_bytes = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]  # noqa: SLF001
    return torch.empty(0, dtype=dtype).set_(storage).view(shape)
