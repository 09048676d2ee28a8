"""Samples as readers hand them out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """Where a sample is and what is known of it without reading its payload."""

    key: str
    #: First token in the shard, and tokens from there.
    token_offset: int
    num_tokens: int
    #: Number of the sample's index row in its shard.
    sequence: int
    #: The shard.
    path: Path
    #: When the sample was appended, nanoseconds since 1970.
    time_ns: int
    #: xxh3-64 of the bytes of states, token ids and loss mask.
    states_xxh3: int
    ids_xxh3: int
    mask_xxh3: int

    @classmethod
    def of(cls, record: np.void, path: Path) -> "SampleEntry":
        """The entry for a row of a shard's index, or for a record of a ``SampleTable``."""
        return cls(
            key=record["key"].decode(),
            token_offset=int(record["token_offset"]),
            num_tokens=int(record["num_tokens"]),
            sequence=int(record["sequence"]),
            path=path,
            time_ns=int(record["time_ns"]),
            states_xxh3=int(record["states_xxh3"]),
            ids_xxh3=int(record["ids_xxh3"]),
            mask_xxh3=int(record["mask_xxh3"]),
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample in memory, writable."""

    key: str
    #: int32 [n].
    token_ids: npt.NDArray[np.int32]
    #: uint8 [n], 1 where the loss is taken, else 0.
    loss_mask: npt.NDArray[np.uint8]
    #: [n, row_width] in the storage dtype.
    states: npt.NDArray[np.generic]
