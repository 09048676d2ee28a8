"""How far states are from recorded ones."""

import numpy as np
import numpy.typing as npt
import pytest
from statetap_contract import CaptureSpec
from statetap_worker.proving.drift import median_row_errors


def as_bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Bit patterns of numbers that bfloat16 has exactly."""
    return (np.array(values, "<f4").view("<u4") >> 16).astype("<u2")


def test_the_middle_row_of_each_slot_counts() -> None:
    """By hand: rows of length 5 that are off by 0, 1 and 5 in one slot, by 0 in the other."""
    spec = CaptureSpec("m", "r", (1,), "post", 2, "bfloat16")
    recorded = as_bfloat16([[3, 4, 1, 1]] * 3)
    ours = as_bfloat16([[3, 4, 1, 1], [4, 4, 1, 1], [0, 0, 1, 1]])
    assert median_row_errors(ours, recorded, spec) == {"h1": 0.2, "last": 0.0}


def test_large_elements_are_compared_too() -> None:
    """Their squares are larger than any float32."""
    spec = CaptureSpec("m", "r", (1,), "post", 1, "float32")
    recorded = np.array([[2e38, 1]], "<f4")
    ours = np.array([[1e38, 1]], "<f4")
    assert median_row_errors(ours, recorded, spec)["h1"] == pytest.approx(0.5)
