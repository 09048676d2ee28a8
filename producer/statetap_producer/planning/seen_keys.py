"""SeenKeys: which sample keys came before, at 16 bytes a key."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Raw bytes of a sample key: 32 hex digits.
_KEY_DTYPE: Final = np.dtype("S16")

Keys = NDArray[np.bytes_]


def raw_keys(keys: list[str]) -> Keys:
    """Sample keys as an array of raw bytes, [len(keys)] of 16."""
    return np.frombuffer(bytes.fromhex("".join(keys)), _KEY_DTYPE)


class SeenKeys:
    """A set that only grows, a batch at a time.

    A million Python strings in a set take 130 MB. Here keys lie in sorted arrays, each at least
    twice as long as the next one, so that each key is moved a few times in all.
    """

    def __init__(self) -> None:
        self._runs: list[Keys] = []

    def add(self, keys: Keys) -> NDArray[np.bool_]:
        """Adds keys; says of each whether it is new, neither there before nor earlier in ``keys``.

        Args:
            keys: of ``raw_keys``, in any order.
        """
        is_new = np.zeros(len(keys), np.bool_)
        _, first = np.unique(keys, return_index=True)
        is_new[first] = True
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, keys), len(run) - 1)
            is_new &= run[places] != keys
        if is_new.any():
            self._runs.append(np.sort(keys[is_new]))
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            self._runs.append(np.sort(np.concatenate([self._runs.pop(), self._runs.pop()])))
        return is_new
