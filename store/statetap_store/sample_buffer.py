"""Memory that samples are read into, one after another."""

from typing import Final

import numpy as np
from statetap_contract import CaptureSpec

from statetap_store.dtypes import storage_dtype
from statetap_store.layout import TOKEN_ID_BYTES
from statetap_store.sample import Sample

#: States and token ids start at a multiple of this, a cache line.
_ALIGNMENT: Final = 64


class SampleBuffer:
    """One allocation with room for the largest sample that is to be read into it.

    Memory that is used for the first time costs several times as much as reading into it, so a
    buffer is made once and used for many samples. Each ``Sample`` that is read into it is a view,
    and gone when the next one comes.

    Args:
        spec: gives the width and the dtype of states.
        max_tokens: tokens of the largest sample.

    Raises:
        ValueError: no room for a single token.
    """

    def __init__(self, spec: CaptureSpec, max_tokens: int) -> None:
        if max_tokens < 1:
            raise ValueError(f"a buffer for {max_tokens} tokens holds no sample")
        self.spec = spec
        self.max_tokens = max_tokens
        ids_start = _aligned(max_tokens * spec.row_bytes)
        mask_start = ids_start + max_tokens * TOKEN_ID_BYTES
        memory = np.empty(mask_start + max_tokens + _ALIGNMENT, np.uint8)
        memory = memory[-memory.ctypes.data % _ALIGNMENT :]
        states = memory[: max_tokens * spec.row_bytes].view(storage_dtype(spec.dtype))
        self._states = states.reshape(max_tokens, spec.row_width)
        self._token_ids = memory[ids_start:mask_start].view("<i4")
        self._loss_mask = memory[mask_start : mask_start + max_tokens]

    def sample(self, key: str, num_tokens: int) -> Sample:
        """A sample of ``num_tokens`` tokens whose arrays are this memory.

        Raises:
            ValueError: the buffer is too small.
        """
        if num_tokens > self.max_tokens:
            raise ValueError(
                f"sample {key} has {num_tokens} tokens and the buffer holds {self.max_tokens}: "
                "make it as large as the largest sample"
            )
        return Sample(
            key,
            self._token_ids[:num_tokens],
            self._loss_mask[:num_tokens],
            self._states[:num_tokens],
        )


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
