"""What stands before the tensors in a safetensors file.

The library wants the tensors whole, in memory. Here rows go from shard to file while they are in a
core's cache (decision 30), and the file is byte for byte what the library would write.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Bytes of an element of each dtype, by the format's names.
ELEMENT_BYTES: Final = {"I64": 8, "F32": 4, "BF16": 2, "F16": 2}
_LENGTH_BYTES: Final = 8
_ALIGNMENT: Final = 8


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


def safetensors_header(forms: Mapping[str, TensorForm]) -> bytes:
    """All that stands before the tensors' bytes.

    Args:
        forms: the tensors in the order in which they follow, dtypes with large elements first.
    """
    header: dict[str, object] = {}
    offset = 0
    for name, form in forms.items():
        end = offset + form.num_bytes
        header[name] = {"dtype": form.dtype, "shape": form.shape, "data_offsets": (offset, end)}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text
