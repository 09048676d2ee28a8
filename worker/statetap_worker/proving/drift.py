"""How far states are from recorded ones, and how far is too far.

Bits are never compared: other batches, chunks and kernels round in other places.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec
from statetap_store.dtypes import as_float32

#: Largest median of a slot's relative row errors. In half precision 16 unit roundoffs, which are
#: 2^-8 and 2^-11: of SmolLM2, batches move it by 4, another implementation by 7, weights in fp8 by
#: 31. In float32 batches move it by some 2^-21, and weights that differ by 0.01 % by 4e-4
#: (benchmarks/canary_drift.py, decision note 22).
MEDIAN_BOUNDS: Final = {"float32": 1e-4, "bfloat16": 16 * 2.0**-8, "float16": 16 * 2.0**-11}


def median_row_errors(
    ours: npt.NDArray[np.generic], recorded: npt.NDArray[np.generic], spec: CaptureSpec
) -> dict[str, float]:
    """For each slot, the median over rows of ||ours - recorded|| / ||recorded||.

    Args:
        ours: [num_tokens, row_width] in the storage dtype of ``spec.dtype``.
        recorded: the same, without zero rows.
        spec: gives the slots.
    """
    shape = len(ours), spec.num_slots, spec.hidden_size
    # In double precision, or the squares of large elements would overflow.
    right = as_float32(recorded, spec.dtype).reshape(shape).astype(np.float64)
    difference = as_float32(ours, spec.dtype).reshape(shape) - right
    errors = np.linalg.norm(difference, axis=2) / np.linalg.norm(right, axis=2)
    return dict(zip(spec.slot_names, np.median(errors, axis=0).tolist(), strict=True))
