"""States as torch tensors.

The modules ``torch_*`` are the store's only ones that import torch.
"""

import numpy as np
import numpy.typing as npt
import torch


def to_torch(states: npt.NDArray[np.generic], dtype: str) -> torch.Tensor:
    """A tensor of ``dtype`` over the same memory as ``states``; nothing is copied.

    Args:
        states: array in the storage dtype of ``dtype``, writable, as a reader hands it out.
        dtype: ``bfloat16``, ``float16`` or ``float32``.
    """
    if dtype == "bfloat16":
        return torch.from_numpy(states.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(states)
