"""A published dump as arrays that a fault can change, and publish as if they were the server's."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import (
    HEADER_BYTES,
    Receipt,
    decode_header,
    dump_name,
    encode_header,
    layout_of,
)


@dataclass(frozen=True, slots=True)
class Content:
    """What a dump holds."""

    receipt: Receipt
    #: [num_tokens] int32.
    token_ids: npt.NDArray[np.int32]
    #: [num_tokens, row_width], float32 unless a fault makes it otherwise.
    states: npt.NDArray[np.generic]

    @classmethod
    def read(cls, folder: Path, key: str) -> Self:
        raw = (folder / dump_name(key)).read_bytes()
        receipt = decode_header(raw[:HEADER_BYTES])
        layout = layout_of(receipt)
        states = np.frombuffer(raw[layout.states_offset : layout.token_ids_offset], "<f4")
        token_ids = np.frombuffer(raw[layout.token_ids_offset :], "<i4")
        return cls(receipt, token_ids, states.reshape(layout.num_tokens, layout.row_width))

    def publish(self, folder: Path, key: str) -> Receipt:
        """Makes it the dump of a key; counts and checksum of the receipt become right for it."""
        receipt = replace(
            self.receipt,
            num_tokens=len(self.states),
            row_width=self.states.shape[1],
            states_xxh3=xxhash.xxh3_64_hexdigest(self.states.tobytes()),
        )
        replace_file(
            folder / dump_name(key),
            encode_header(receipt) + self.states.tobytes() + self.token_ids.tobytes(),
        )
        return receipt


def replace_file(path: Path, raw: bytes) -> None:
    """Another file under the same name; one that is mapped stays as it is."""
    temporary = path.with_suffix(".faulty")
    temporary.write_bytes(raw)
    temporary.rename(path)
