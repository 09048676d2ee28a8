"""A writer to be killed: appends numbered samples without end and says which are committed.

Usage: endless_writer.py FOLDER FIRST BATCH ACKNOWLEDGED. Appends from number FIRST on, commits
every BATCH samples, and then adds their numbers to the file ACKNOWLEDGED.
"""

import os
import sys
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardSet

SPEC = CaptureSpec("tiny", "r1", (1, 3), "post", 8, "bfloat16")
PROVENANCE = Provenance("run-1", "w0", "gpu-1", "0.5.23", "0.1.0", (2, 4))

#: Room for about 200 samples, so that kills meet full shards too.
SHARD_BYTES = 80 * 1024

Arrays = tuple[str, npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint16]]


def numbered_sample(number: int, num_tokens: int = 0) -> Arrays:
    """Key, ids, mask and bfloat16 states of a sample that its number determines.

    The states are finite and no slot is zero; between 1 and 13 tokens unless said otherwise.
    """
    num_tokens = num_tokens or 1 + number % 13
    ids = np.arange(number, number + num_tokens, dtype=np.int32)
    states = 1 + (np.arange(num_tokens * SPEC.row_width) + 31 * number) % 16000
    return (
        f"{number:032x}",
        ids,
        (ids % 2).astype(np.uint8),
        states.astype(np.uint16).reshape(num_tokens, SPEC.row_width),
    )


def main(folder: Path, first: int, batch: int, acknowledged: Path) -> None:
    """Runs until it is killed."""
    fd = os.open(acknowledged, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o644)
    shards = ShardSet(folder, "w0", SHARD_BYTES, SPEC, PROVENANCE)
    for start in count(first, batch):
        for number in range(start, start + batch):
            shards.append(*numbered_sample(number))
        shards.commit()
        os.write(fd, "".join(f"{number}\n" for number in range(start, start + batch)).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
