"""Rows that no model computed: not finite, or zero in a whole slot.

Both can pass every checksum: the server hashed what it had. All-zero slots come from layers that
were never captured, NaN and inf from kernels that overflowed; a drafter trains on either without
a word.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec

#: Per dtype: the bits as unsigned integers, the mask that drops the sign, and infinity's bits.
#: A magnitude at or above infinity is infinite or not a number.
_BITS: Final[dict[str, tuple[type[np.unsignedinteger[Any]], int, int]]] = {
    "bfloat16": (np.uint16, 0x7FFF, 0x7F80),
    "float16": (np.uint16, 0x7FFF, 0x7C00),
    "float32": (np.uint32, 0x7FFF_FFFF, 0x7F80_0000),
}

#: Bytes looked at together: small enough to stay in a core's cache.
_BLOCK_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class BadRow:
    """One slot of one row."""

    #: ``not-finite`` or ``zero-row``.
    kind: str
    row: int
    slot: str

    def __str__(self) -> str:
        what = "holds NaN or infinity" if self.kind == "not-finite" else "is all zero"
        return f"slot {self.slot} of row {self.row} {what}"


def bad_rows(states: npt.NDArray[Any], spec: CaptureSpec) -> Iterator[BadRow]:
    """Finds them, in row order.

    Args:
        states: [num_tokens, row_width] in the storage dtype of ``spec.dtype``.
        spec: gives the slots of a row.
    """
    integer, mask, infinity = _BITS[spec.dtype]
    bits = states.view(integer).reshape(len(states), spec.num_slots, spec.hidden_size)
    block_rows = max(1, _BLOCK_BYTES // spec.row_bytes)
    for start in range(0, len(bits), block_rows):
        # Of shape [rows, slots, hidden_size].
        magnitudes = bits[start : start + block_rows] & integer(mask)
        # Nearly always no slot begins with zero, so that none is all zero; then one maximum of all
        # is enough.
        if magnitudes.max() < infinity and magnitudes[:, :, 0].all():
            continue
        # One maximum of each slot answers both questions.
        largest = magnitudes.max(axis=2)
        for row, slot in np.argwhere((largest >= infinity) | (largest == 0)):
            kind = "zero-row" if largest[row, slot] == 0 else "not-finite"
            yield BadRow(kind, start + int(row), spec.slot_names[slot])
