"""Samples as files of ``torch.save``."""

from collections.abc import Mapping
from functools import lru_cache
from typing import IO, Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch
from statetap_contract import CaptureSpec
from statetap_store import storage_dtype
from statetap_store.torch_view import to_torch
from torch.serialization import get_crc32_options, set_crc32_options

from statetap_producer.exporting.new_file import NewFile, disk_errors_of
from statetap_producer.exporting.trainer_format import SampleStream

#: Bytes of a token's id and of its place in the mask, both int64.
_TOKEN_BYTES: Final = 8 + 8
#: What such a file has beside its tensors: a pickle, names, alignment.
_BESIDE_BYTES: Final = 2_300


def torch_bytes(spec: CaptureSpec, num_tokens: int) -> int:
    """Bytes of a sample's file."""
    return num_tokens * (spec.row_bytes + _TOKEN_BYTES) + _BESIDE_BYTES


def token_tensors(sample: SampleStream) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss mask, int64 [n]."""
    return torch.from_numpy(sample.token_ids).long(), torch.from_numpy(sample.loss_mask).long()


def state_tensors(sample: SampleStream) -> tuple[torch.Tensor, torch.Tensor]:
    """Aux states [n, layers * hidden] and last states [n, hidden], until the next call.

    Each has a storage of its own size, as that is what is saved.

    Raises:
        CheckError: what the sample's blocks raise.
    """
    spec = sample.spec
    num_tokens, dtype = len(sample.token_ids), storage_dtype(spec.dtype)
    num_aux = len(spec.layers) * spec.hidden_size
    memory = _memory(_room_for(num_tokens * spec.row_bytes))[: num_tokens * spec.row_bytes]
    aux_bytes = num_tokens * num_aux * dtype.itemsize
    aux = memory[:aux_bytes].view(dtype).reshape(num_tokens, num_aux)
    last = memory[aux_bytes:].view(dtype).reshape(num_tokens, spec.hidden_size)
    start = 0
    for rows in sample.blocks:
        end = start + len(rows)
        aux[start:end], last[start:end] = rows[:, :num_aux], rows[:, num_aux:]
        start = end
    return to_torch(aux, spec.dtype), to_torch(last, spec.dtype)


def save_torch(content: torch.Tensor | Mapping[Any, Any], file: NewFile) -> None:
    """Writes what ``torch.load`` reads, mapped into memory too. Raises OSError.

    Without the archive's CRC-32, which takes a third of the time and which torch never looks at:
    an export has better checksums beside its files.
    """
    before = get_crc32_options()
    set_crc32_options(compute_crc32=False)
    try:
        with disk_errors_of(file):
            torch.save(content, cast(IO[bytes], file))
    finally:
        set_crc32_options(before)


def _room_for(num_bytes: int) -> int:
    """The next power of two, so that memory is taken a few times only."""
    return 1 << (num_bytes - 1).bit_length()


@lru_cache(1)
def _memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory that is used for the first time is slow, so each process keeps one piece of it."""
    return np.empty(num_bytes, np.uint8)
