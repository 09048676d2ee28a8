"""What is in shards and ledger at the end, held against the plan and against HF transformers."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from statetap_contract import DeadLetter, Prompt
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder
from statetap_store import SampleTable

from .batched_reference import BatchedReference

#: Largest difference of a float32 state from HF transformers.
_BOUND: Final = 1e-4

#: Prompts of one length that HF computes at a time.
_BATCH: Final = 64

#: Reasons that kills, freezes and restarts explain. A mismatch is none of them.
EXPLAINED: Final = frozenset(
    {
        "worker-lost",
        "server-lost",
        "server-error",
        "server-timeout",
        "request-aborted",
        "key-in-flight",
        "dump-missing",
    }
)


@dataclass(slots=True)
class Account:
    """Every planned key, and where it was found."""

    #: Index rows of samples by key, over all shards, as they are on the disk.
    stored: Counter[str] = field(default_factory=Counter)
    letters: dict[str, list[DeadLetter]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def num_doubles(self) -> int:
        """Index rows beyond the first of their key."""
        return self.stored.total() - len(self.stored)

    @property
    def dead(self) -> set[str]:
        return self.letters.keys() - self.stored.keys()

    @property
    def dead_by_kind(self) -> Counter[str]:
        return Counter(self.letters[key][-1].kind for key in self.dead)


def account(run: RunFolder) -> Account:
    """Goes through all shards and ledgers, and says what is not as promised."""
    found = Account()
    planned = Plan(run.plan_file, run.read_record().counts.num_planned).keys()
    for path in run.shard_files():
        with h5py.File(path, locking=False) as shard:
            found.stored.update(row["key"].decode() for row in _samples(shard))
    for path in sorted(run.ledger.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            letter = DeadLetter.from_json(json.loads(line))
            found.letters.setdefault(letter.key, []).append(letter)
    listed = [entry.key for entry in SampleTable.scan(run.shards)]
    lost = planned - found.stored.keys() - found.letters.keys()
    foreign = (found.stored.keys() | found.letters.keys()) - planned
    unexplained = [
        found.letters[key][-1]
        for key in sorted(found.dead)
        if found.letters[key][-1].kind not in EXPLAINED
    ]
    found.faults += [f"{key} is neither stored nor dead" for key in sorted(lost)]
    found.faults += [f"{key} is not planned" for key in sorted(foreign)]
    found.faults += [f"nothing explains {letter}" for letter in unexplained]
    twice = sorted(key for key, number in found.stored.items() if number > 1)
    found.faults += [f"{key} is stored {found.stored[key]} times" for key in twice]
    if sorted(listed) != sorted(planned - found.dead):
        found.faults.append(
            f"readers list {len(listed)} samples of {len(set(listed))} keys, not each of "
            f"{len(planned - found.dead)} once"
        )
    return found


def wrong_rows(run: RunFolder, model: Path) -> Iterator[str]:
    """Every sample in every shard whose content is not its prompt's; doubles are looked at too."""
    record = run.read_record()
    plan = Plan(run.plan_file, record.counts.num_planned)
    prompts = {row.key: row.prompt for row in plan.rows()}
    reference = BatchedReference(model, record.inputs.spec)
    for path in run.shard_files():
        with h5py.File(path, locking=False) as shard:
            by_length: dict[int, list[Any]] = {}
            for row in _samples(shard):
                by_length.setdefault(int(row["num_tokens"]), []).append(row)
            for rows in by_length.values():
                for start in range(0, len(rows), _BATCH):
                    yield from _compare(shard, rows[start : start + _BATCH], prompts, reference)


def _samples(shard: Any) -> Any:
    rows = shard["index"][:]
    return rows[rows["state"] == 1]


def _compare(
    shard: Any, rows: list[Any], prompts: Mapping[str, Prompt], reference: BatchedReference
) -> Iterator[str]:
    """Samples of one length. Those of unknown keys are found by ``account``."""
    keys = [row["key"].decode() for row in rows]
    pairs = zip(keys, rows, strict=True)
    known = [(key, row, prompts[key]) for key, row in pairs if key in prompts]
    if not known:
        return
    expected = reference.states([prompt.token_ids for _, _, prompt in known])
    for (key, row, prompt), states in zip(known, expected, strict=True):
        tokens = slice(int(row["token_offset"]), int(row["token_offset"] + row["num_tokens"]))
        is_right = (
            np.array_equal(shard["input_ids"][tokens], prompt.token_ids)
            and np.array_equal(shard["loss_mask"][tokens], np.frombuffer(prompt.loss_mask(), "u1"))
            and np.abs(shard["states"][tokens] - states).max() <= _BOUND
        )
        if not is_right:
            yield f"{key} in {Path(shard.filename).name} is wrong"
