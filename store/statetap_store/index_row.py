"""Rows of a shard's index: 128 bytes each that prove themselves and the payload of one sample.

A million rows are handled as one array of ``ROW_DTYPE``; a single one that is written or looked
at closely is an ``IndexRow``.
"""

import struct
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import KEY_FORM

ROW_BYTES: Final = 128

#: First four bytes of every written row, "STR1" in ASCII.
ROW_MAGIC: Final = 0x31525453

#: The row describes a sample.
STATE_SAMPLE: Final = 1
#: The row holds no sample: recovery did not find it proven, or repair found it damaged.
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

#: Rows of ``ROW_DTYPE``, one-dimensional.
Rows = npt.NDArray[np.void]

#: The same 128 bytes as what is hashed, and the hash.
_HASHED: Final = np.dtype([("fields", "V120"), ("xxh3", "<u8")])

_FIELDS: Final = struct.Struct("<II32sQIIQQQQQQ16x")
_HASH: Final = struct.Struct("<Q")

#: Where the key's bytes lie in a row.
KEY_BYTES: Final = slice(8, 40)
#: Whether a byte is a lower-case hex digit.
_IS_HEX: Final = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))


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
    def void(
        cls, key: str, sequence: int, token_offset: int, num_tokens: int, num_durable: int
    ) -> "IndexRow":
        """A row that holds no sample, written now."""
        return cls(
            state=STATE_VOID,
            key=key,
            token_offset=token_offset,
            num_tokens=num_tokens,
            states_xxh3=0,
            ids_xxh3=0,
            mask_xxh3=0,
            time_ns=time.time_ns(),
            sequence=sequence,
            num_durable=num_durable,
        )

    @classmethod
    def of(cls, record: np.void) -> "IndexRow":
        """The row that one element of ``ROW_DTYPE``, known to be right, holds."""
        return cls(
            state=int(record["state"]),
            key=readable_key(record["key"]) or "",
            token_offset=int(record["token_offset"]),
            num_tokens=int(record["num_tokens"]),
            states_xxh3=int(record["states_xxh3"]),
            ids_xxh3=int(record["ids_xxh3"]),
            mask_xxh3=int(record["mask_xxh3"]),
            time_ns=int(record["time_ns"]),
            sequence=int(record["sequence"]),
            num_durable=int(record["num_durable"]),
        )

    @classmethod
    def decode(cls, data: bytes, sequence: int) -> "IndexRow | None":
        """Reads row number ``sequence``; None when these bytes are not that row, whole."""
        if len(data) != ROW_BYTES:
            return None
        records = np.frombuffer(data, ROW_DTYPE)
        return cls.of(records[0]) if are_rows(records, np.array([sequence]))[0] else None


def are_rows(records: Rows, sequences: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Which of the records are whole, and the rows of these numbers.

    Args:
        records: [n].
        sequences: [n], the number that each row must have.

    Returns:
        bool [n].
    """
    hashed = records.view(_HASHED)
    digests = map(xxhash.xxh3_64_intdigest, hashed["fields"])
    is_whole = np.fromiter(digests, np.uint64, len(records)) == hashed["xxh3"]
    has_key = _IS_HEX[records.view(np.uint8).reshape(-1, ROW_BYTES)[:, KEY_BYTES]].all(axis=1)
    is_sample = (records["state"] == STATE_SAMPLE) & has_key & (records["num_tokens"] > 0)
    is_known = is_sample | (records["state"] == STATE_VOID)
    is_placed = (records["sequence"] == sequences) & (records["num_durable"] <= sequences)
    is_right: npt.NDArray[np.bool_] = (
        is_whole & (records["magic"] == ROW_MAGIC) & is_known & is_placed
    )
    return is_right


def set_checksums(rows: Rows) -> None:
    """Gives each of the rows its checksum."""
    hashed = rows.view(_HASHED)
    digests = map(xxhash.xxh3_64_intdigest, hashed["fields"])
    hashed["xxh3"] = np.fromiter(digests, np.uint64, len(rows))


def samples_of(rows: Rows) -> Rows:
    """The rows that describe a sample."""
    is_sample = rows["state"] == STATE_SAMPLE
    # Copying a million rows takes as long as reading them.
    return rows if is_sample.all() else rows[is_sample]


def keys_of(rows: Rows) -> list[str]:
    """The sample keys of rows that describe samples, in their order."""
    # One string cut into pieces: five times as fast as a string from each element.
    text = rows["key"].tobytes().decode("ascii")
    width = ROW_DTYPE["key"].itemsize
    return [text[start : start + width] for start in range(0, len(text), width)]


def is_repeated(keys: npt.NDArray[np.bytes_]) -> npt.NDArray[np.bool_]:
    """Which keys, ``S32`` [n], stand further in front already. Bool [n]."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    found = np.zeros(len(keys), np.bool_)
    found[order[1:]] = in_order[1:] == in_order[:-1]
    return found


def readable_key(key: bytes) -> str | None:
    """A key field's 32 bytes as a sample key, None when they cannot be one."""
    text = key.decode("latin-1")
    return text if KEY_FORM.fullmatch(text) else None


def mended_row(data: bytes, sequence: int) -> IndexRow | None:
    """The row that ``data`` was before one bit of it changed; None when more is wrong.

    All 1024 rows that differ in one bit are tried against the checksum.
    """
    if len(data) != ROW_BYTES or not any(data):
        return None
    bits = np.eye(8 * ROW_BYTES, dtype=np.bool_)
    trials = np.frombuffer(data, np.uint8) ^ np.packbits(bits, axis=1, bitorder="little")
    records = trials.view(ROW_DTYPE).reshape(-1)
    [found] = np.nonzero(are_rows(records, np.full(len(records), sequence)))
    return IndexRow.of(records[found[0]]) if len(found) else None


def key_of_damaged(data: bytes, sequence: int) -> str | None:
    """The key of the sample in a damaged row: certain when one bit is wrong, else as it stands."""
    row = mended_row(data, sequence)
    if row is not None:
        return row.key if row.is_sample else None
    return readable_key(data[KEY_BYTES])
