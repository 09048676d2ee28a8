"""One row of a shard's index: 128 bytes that prove themselves and the payload of one sample."""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash
from statetap_contract import KEY_FORM

ROW_BYTES: Final = 128

#: First four bytes of every written row, "STR1" in ASCII.
ROW_MAGIC: Final = 0x31525453

#: The row describes a sample.
STATE_SAMPLE: Final = 1
#: The row's sample was never proven complete and recovery gave it up.
STATE_VOID: Final = 2

#: The row as an HDF5 compound type. ``_FIELDS`` packs the same bytes.
ROW_DTYPE: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("state", "<u4"),
        ("key", "S32"),
        ("token_offset", "<u8"),
        ("num_tokens", "<u4"),
        ("flags", "<u4"),
        ("states_xxh3", "<u8"),
        ("ids_xxh3", "<u8"),
        ("mask_xxh3", "<u8"),
        ("time_ns", "<u8"),
        ("sequence", "<u8"),
        ("num_durable", "<u8"),
        ("reserved", "<u8", (2,)),
        ("row_xxh3", "<u8"),
    ]
)

_FIELDS: Final = struct.Struct("<II32sQIIQQQQQQ16x")
_HASH: Final = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class IndexRow:
    """A row whose own checksum was right."""

    #: ``STATE_SAMPLE`` or ``STATE_VOID``.
    state: int
    #: Sample key; empty in a void row whose key is lost.
    key: str
    #: First token in the shard, and tokens from there.
    token_offset: int
    num_tokens: int
    #: xxh3-64 of the bytes of states, token ids and loss mask.
    states_xxh3: int
    ids_xxh3: int
    mask_xxh3: int
    #: When the row was written, nanoseconds since 1970.
    time_ns: int
    #: Number of the row in its shard, from 0.
    sequence: int
    #: Rows that were known to be durable, payload included, when this one was written. They are
    #: always the first ones.
    num_durable: int

    @property
    def is_sample(self) -> bool:
        return self.state == STATE_SAMPLE

    @property
    def token_end(self) -> int:
        """The first token after the row's."""
        return self.token_offset + self.num_tokens

    def encode(self) -> bytes:
        """The row's 128 bytes."""
        fields = _FIELDS.pack(
            ROW_MAGIC,
            self.state,
            self.key.encode("ascii"),
            self.token_offset,
            self.num_tokens,
            0,
            self.states_xxh3,
            self.ids_xxh3,
            self.mask_xxh3,
            self.time_ns,
            self.sequence,
            self.num_durable,
        )
        return fields + _HASH.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, data: bytes, sequence: int) -> "IndexRow | None":
        """Reads row number ``sequence``; None when these bytes are not that row, whole."""
        fields = data[: _FIELDS.size]
        if len(data) != ROW_BYTES or _HASH.unpack_from(data, _FIELDS.size)[
            0
        ] != xxhash.xxh3_64_intdigest(fields):
            return None
        magic, state, key, offset, num_tokens, _, *rest = _FIELDS.unpack(fields)
        row = cls(state, readable_key(key) or "", offset, num_tokens, *rest)
        is_known = state == STATE_VOID or (state == STATE_SAMPLE and row.key and num_tokens > 0)
        is_placed = row.sequence == sequence and row.num_durable <= sequence
        return row if magic == ROW_MAGIC and is_known and is_placed else None


def readable_key(key: bytes) -> str | None:
    """A key field's 32 bytes as a sample key, None when they cannot be one."""
    text = key.decode("latin-1")
    return text if KEY_FORM.fullmatch(text) else None


def key_of_damaged(data: bytes, sequence: int) -> str | None:
    """The sample key in a damaged row: certain when one bit is wrong, else as it stands.

    All 1024 rows that differ in one bit are tried against the checksum, which takes about a
    millisecond.
    """
    if not any(data):
        return None
    bits = bytearray(data)
    for bit in range(8 * len(bits)):
        bits[bit // 8] ^= 1 << bit % 8
        row = IndexRow.decode(bytes(bits), sequence)
        if row is not None:
            return row.key or None
        bits[bit // 8] ^= 1 << bit % 8
    return readable_key(data[8:40])
