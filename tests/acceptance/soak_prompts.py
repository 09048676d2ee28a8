"""The prompts of a soak, and what the shards hold of them, read with plain h5py."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

#: Tokens of the system prompt that half of the prompts begin with.
NUM_SYSTEM_TOKENS: Final = 60
#: Shortest and longest prompt. What follows the system prompt is never shorter than the shortest.
LENGTHS: Final = 20, 400


@dataclass(slots=True)
class SoakPrompts:
    """Prompts of ready token ids with loss masks, no two alike."""

    #: Loss mask of each prompt by its token ids, as the bytes of uint8 and int32.
    masks: dict[bytes, bytes] = field(default_factory=dict)
    num_tokens: int = 0
    num_behind_system: int = 0
    #: Of those, how many have how many tokens.
    lengths: Counter[int] = field(default_factory=Counter)

    def num_longer_than(self, num_tokens: int) -> int:
        return sum(num for length, num in self.lengths.items() if length > num_tokens)


def write_prompts(dataset: Path, num_prompts: int, seed: int) -> SoakPrompts:
    """Makes a dataset of that many; the same seed gives the same."""
    generator = random.Random(seed)
    system = [generator.randrange(2, 512) for _ in range(NUM_SYSTEM_TOKENS)]
    shortest, longest = LENGTHS
    made = SoakPrompts()
    with dataset.open("w") as lines:
        for number in range(num_prompts):
            prefix = system if number % 2 else []
            num_own = generator.randint(shortest, longest - len(prefix))
            ids = prefix + [generator.randrange(2, 512) for _ in range(num_own)]
            num_asked = generator.randrange(1, len(ids))
            loss_mask = [0] * num_asked + [1] * (len(ids) - num_asked)
            lines.write(json.dumps({"input_ids": ids, "loss_mask": loss_mask}) + "\n")
            made.masks[np.array(ids, "<i4").tobytes()] = bytes(loss_mask)
            made.num_tokens += len(ids)
            made.num_behind_system += number % 2
            made.lengths[len(ids)] += 1
    return made


@dataclass(slots=True)
class StoredRows:
    """The index rows of all shards of a run."""

    keys: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    #: Bytes of states, ids and masks.
    num_bytes: int = 0
    #: When the first and the last sample were written, nanoseconds since 1970.
    first_ns: int = 1 << 63
    last_ns: int = 0


def stored_rows(shards: Path) -> StoredRows:
    """Counts index rows that hold a sample, also while they are being written."""
    found = StoredRows()
    for shard, rows in _samples(shards):
        found.keys.update(key.decode() for key in rows["key"].tolist())
        num_tokens = int(rows["num_tokens"].sum())
        found.num_tokens += num_tokens
        payload = (shard[name] for name in ("states", "input_ids", "loss_mask"))
        found.num_bytes += num_tokens * sum(part[0].nbytes for part in payload)
        if len(rows):
            found.first_ns = min(found.first_ns, int(rows["time_ns"].min()))
            found.last_ns = max(found.last_ns, int(rows["time_ns"].max()))
    return found


def wrong_samples(shards: Path, prompts: SoakPrompts) -> list[str]:
    """Keys of samples whose ids and mask are those of no prompt, or of one that was there."""
    left = dict(prompts.masks)
    wrong = []
    for shard, rows in _samples(shards):
        for row in rows:
            start = int(row["token_offset"])
            tokens = slice(start, start + int(row["num_tokens"]))
            mask = left.pop(shard["input_ids"][tokens].tobytes(), None)
            if mask != shard["loss_mask"][tokens].tobytes():
                wrong.append(row["key"].decode())
    return wrong


def _samples(shards: Path) -> Iterator[tuple[Any, Any]]:
    """Each shard, with its index rows of samples."""
    for path in sorted(shards.glob("*.h5")):
        with h5py.File(path, locking=False) as shard:
            rows = shard["index"][:]
            yield shard, rows[rows["state"] == 1]
