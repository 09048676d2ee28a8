"""The dump's file layout: a safetensors file with a header of fixed size.

    byte 0      8 bytes: length of the JSON that follows, little-endian
    byte 8      JSON, padded with blanks up to byte 4096
    byte 4096   states     [num_tokens, row_width], page-aligned so that it can be mapped
    ...         token_ids  [num_tokens] int32, the ids the model was fed in these very rows

The header's size does not depend on its content, so rows can be written in place while the
prompt is still being computed, and the header, which carries the receipt, comes last. Until
then the file does not parse.
"""

import json
import struct
from dataclasses import dataclass
from typing import Final

from statetap_contract.prompt import KEY_FORM
from statetap_contract.receipt import Receipt
from statetap_contract.spec import DTYPE_BYTES
from statetap_contract.strict_json import FieldReader

#: Bytes before the first row.
HEADER_BYTES: Final = 4096

_SUFFIX: Final = ".safetensors"

_SAFETENSORS_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class DumpLayout:
    """Where the parts of a dump lie, in bytes from the start of the file."""

    num_tokens: int
    row_width: int
    dtype: str

    @property
    def row_bytes(self) -> int:
        return self.row_width * DTYPE_BYTES[self.dtype]

    @property
    def states_offset(self) -> int:
        return HEADER_BYTES

    @property
    def token_ids_offset(self) -> int:
        return HEADER_BYTES + self.num_tokens * self.row_bytes

    @property
    def file_bytes(self) -> int:
        return self.token_ids_offset + 4 * self.num_tokens


def dump_name(key: str) -> str:
    """File name of a published dump. Raises ValueError for a key of another form."""
    if not KEY_FORM.fullmatch(key):
        raise ValueError(f"sample key {key!r} is not 32 lower-case hex digits")
    return key + _SUFFIX


def is_dump_name(name: str) -> bool:
    """Whether a file has the name of a published dump: a sample key and the suffix."""
    return name.endswith(_SUFFIX) and KEY_FORM.fullmatch(name.removesuffix(_SUFFIX)) is not None


def layout_of(receipt: Receipt) -> DumpLayout:
    """The layout of the dump that a receipt describes."""
    return DumpLayout(receipt.num_tokens, receipt.row_width, receipt.dtype)


def encode_header(receipt: Receipt) -> bytes:
    """The first ``HEADER_BYTES`` bytes of the dump.

    Raises:
        ValueError: the receipt does not fit, which only an absurdly long path can cause.
    """
    layout = layout_of(receipt)
    states_end = layout.token_ids_offset - HEADER_BYTES
    header = {
        "__metadata__": {"receipt": json.dumps(receipt.to_json())},
        "states": {
            "dtype": _SAFETENSORS_DTYPES[layout.dtype],
            "shape": [layout.num_tokens, layout.row_width],
            "data_offsets": [0, states_end],
        },
        "token_ids": {
            "dtype": "I32",
            "shape": [layout.num_tokens],
            "data_offsets": [states_end, states_end + 4 * layout.num_tokens],
        },
    }
    body = json.dumps(header).encode()
    room = HEADER_BYTES - 8
    if len(body) > room:
        raise ValueError(f"the dump's header needs {len(body)} bytes and has {room}")
    return struct.pack("<Q", room) + body.ljust(room)


def decode_header(header: bytes) -> Receipt:
    """The receipt in a dump's first ``HEADER_BYTES`` bytes.

    Raises:
        ValueError: not a complete header, or one whose tensors are not where the receipt puts
            them.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError(f"the dump has {len(header)} bytes, fewer than its header")
    if struct.unpack_from("<Q", header)[0] != HEADER_BYTES - 8:
        raise ValueError("the dump has no header")
    fields = FieldReader(json.loads(header[8:HEADER_BYTES]), "the dump's header")
    metadata = FieldReader(fields.take("__metadata__", dict), "the dump's metadata")
    receipt = Receipt.from_json(json.loads(metadata.take("receipt", str)))
    if encode_header(receipt) != header[:HEADER_BYTES]:
        raise ValueError("the dump's header disagrees with its own receipt")
    return receipt
