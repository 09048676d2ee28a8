"""How the elements of states are stored: as the bit patterns they came in."""

from typing import Final

import numpy as np
import numpy.typing as npt

#: Storage dtype of each dtype that states may have. NumPy has no bfloat16, and HDF5's own is slow
#: and changes NaN payloads, so its bit patterns are stored as unsigned integers.
_STORAGE: Final = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}


def storage_dtype(dtype: str) -> np.dtype[np.generic]:
    """NumPy dtype in which states of ``dtype`` are stored and handed out.

    Raises:
        ValueError: ``dtype`` is none of ``bfloat16``, ``float16`` and ``float32``.
    """
    if dtype not in _STORAGE:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(_STORAGE)}")
    return np.dtype(_STORAGE[dtype])


def as_float32(states: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.float32]:
    """The numbers that stored states of ``dtype`` are; all three dtypes fit float32 exactly."""
    if dtype == "bfloat16":
        return (states.astype("<u4") << 16).view("<f4")
    return states.astype("<f4")
