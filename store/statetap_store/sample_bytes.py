"""A sample's arrays as the bytes that are stored, after proving that they fit together."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from statetap_contract import KEY_FORM, CaptureSpec

from statetap_store.dtypes import storage_dtype


@dataclass(frozen=True, slots=True)
class SampleBytes:
    """Views of the caller's memory."""

    num_tokens: int
    #: int32, little-endian.
    token_ids: memoryview
    loss_mask: memoryview
    #: Rows of states, one after another.
    states: memoryview

    @classmethod
    def of(
        cls,
        spec: CaptureSpec,
        key: str,
        token_ids: npt.NDArray[np.int32],
        loss_mask: npt.NDArray[np.uint8],
        states: npt.NDArray[np.generic],
    ) -> Self:
        """Views of a sample's arrays.

        Raises:
            ValueError: a key of another form, no tokens, a wrong dtype or shape, a loss mask
                that holds anything but 0 and 1, or an array that is not contiguous.
        """
        if not KEY_FORM.fullmatch(key):
            raise ValueError(f"sample key {key!r} is not 32 lower-case hex digits")
        num_tokens = token_ids.size
        if token_ids.dtype != np.dtype("<i4") or token_ids.shape != (num_tokens,) or not num_tokens:
            raise ValueError(f"token ids are {_form(token_ids)}, not int32 [n]")
        if loss_mask.dtype != np.uint8 or loss_mask.shape != (num_tokens,):
            raise ValueError(f"the loss mask is {_form(loss_mask)}, not uint8 [{num_tokens}]")
        if loss_mask.max() > 1:
            raise ValueError(f"the loss mask holds {loss_mask.max()}, not only 0 and 1")
        dtype = storage_dtype(spec.dtype)
        is_typed = states.dtype == dtype and states.shape == (num_tokens, spec.row_width)
        is_raw = states.dtype == np.uint8 and states.nbytes == num_tokens * spec.row_bytes
        if not is_typed and not is_raw:
            raise ValueError(
                f"states are {_form(states)}, neither {dtype} [{num_tokens}, {spec.row_width}] "
                f"nor {num_tokens * spec.row_bytes} bytes as uint8"
            )
        return cls(num_tokens, _bytes_of(token_ids), _bytes_of(loss_mask), _bytes_of(states))


def _form(array: npt.NDArray[np.generic]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _bytes_of(array: npt.NDArray[np.generic]) -> memoryview:
    if not array.flags.c_contiguous:
        raise ValueError(f"an array of {_form(array)} is not contiguous")
    return array.reshape(-1).view(np.uint8).data
