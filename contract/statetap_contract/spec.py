"""The capture spec: what is captured, from which model. Its digest names the queue."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from statetap_contract.strict_json import read_record, record_of

#: Bytes of one element of each dtype that states may have.
DTYPE_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4}

#: The final norm was applied to the last hidden state ("post") or not ("pre").
NORMS: Final = ("post", "pre")


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """What one row of states holds.

    A row is the concatenation of one slot per aux layer, ascending, then the last hidden
    state: ``row_width = (len(layers) + 1) * hidden_size`` elements of ``dtype``.
    """

    #: Name the model is served under.
    model: str
    #: Fingerprint of the model folder, see ``model_folder``.
    revision: str
    #: Aux layers as boundary indices (``hidden_states[k]`` of HF transformers), ascending.
    layers: tuple[int, ...]
    #: Whether the last hidden state has had the final norm: ``post`` or ``pre``.
    norm: str
    #: Elements of one layer's state.
    hidden_size: int
    #: ``bfloat16``, ``float16`` or ``float32``.
    dtype: str

    def __post_init__(self) -> None:
        if not self.model or not self.revision:
            raise ValueError("a capture spec needs a model and a revision")
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ValueError(
                f"layers {list(self.layers)} must be boundary indices in ascending order"
            )
        if self.norm not in NORMS:
            raise ValueError(f"norm {self.norm!r} is none of {', '.join(NORMS)}")
        if self.hidden_size < 1:
            raise ValueError(f"hidden size {self.hidden_size} is not positive")
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is none of {', '.join(DTYPE_BYTES)}")

    @property
    def num_slots(self) -> int:
        """Layers' states in a row: the aux layers and the last hidden state."""
        return len(self.layers) + 1

    @property
    def slot_names(self) -> tuple[str, ...]:
        """A short name for each slot, in row order: ``h2, h15, h27, last``."""
        return (*(f"h{layer}" for layer in self.layers), "last")

    @property
    def row_width(self) -> int:
        """Elements in a row."""
        return self.num_slots * self.hidden_size

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.row_width * DTYPE_BYTES[self.dtype]

    def to_json(self) -> dict[str, object]:
        """A JSON object; ``from_json`` reads it back."""
        return record_of(self)

    @classmethod
    def from_json(cls, value: object) -> "CaptureSpec":
        """Reads ``to_json``'s object. Raises ValueError when it is not one."""
        return read_record(cls, value, "the capture spec")

    @property
    def digest(self) -> str:
        """32 hex digits that stand for the whole spec."""
        return _digest(self)


@lru_cache
def _digest(spec: CaptureSpec) -> str:
    # Asked several times a sample, of one or two specs.
    canonical = json.dumps(spec.to_json(), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()
