"""The judge of ``make chaos`` finds what it is there to find."""

import json
from array import array
from pathlib import Path

import numpy as np
import pytest
from statetap_contract import CaptureSpec, DeadLetter, Prompt, sample_key
from statetap_local.made_runs import keyed, write_run
from statetap_store import Provenance, ShardWriter

from .batched_reference import BatchedReference
from .findings import account, wrong_rows

SPEC = CaptureSpec("tiny", "r", (2, 4, 6), "post", 64, "float32")
PROMPTS = [Prompt(array("i", [7 + number, 8, 9, 10]), ((2, 4),)) for number in range(4)]
KEYS = [sample_key(SPEC.digest, prompt) for prompt in PROMPTS]


class Stored:
    """A run of four planned prompts; shards and ledger are written by hand."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.run = write_run(folder, SPEC, (keyed(SPEC, prompt) for prompt in PROMPTS))
        self.model = model
        states = BatchedReference(model, SPEC).states([prompt.token_ids for prompt in PROMPTS])
        self._states = dict(zip(KEYS, states, strict=True))

    def store(self, name: str, keys: list[str], off_by: float = 0.0) -> None:
        """Makes a shard of samples under these keys; unknown ones get the first prompt's rows."""
        self.run.shards.mkdir(exist_ok=True)
        provenance = Provenance(self.run.name, name, "here", "0", "0", (1, 3, 5))
        shard = self.run.shards / f"{name}-00001.h5"
        with ShardWriter.create(shard, SPEC, provenance, 1 << 20) as writer:
            for key in keys:
                prompt = PROMPTS[KEYS.index(key) if key in KEYS else 0]
                ids = np.array(prompt.token_ids, np.int32)
                mask = np.frombuffer(prompt.loss_mask(), np.uint8)
                states = self._states[KEYS[PROMPTS.index(prompt)]] + np.float32(off_by)
                writer.append(key, ids, mask, states)
            writer.commit()

    def bury(self, key: str, kind: str) -> None:
        letter = DeadLetter(key, kind, "why", 6, "url", "2026-01-01T00:00:00+00:00")
        self.run.ledger.mkdir(exist_ok=True)
        with (self.run.ledger / "left-00.jsonl").open("a") as lines:
            lines.write(json.dumps(letter.to_json()) + "\n")

    def faults(self) -> list[str]:
        return [*account(self.run).faults, *wrong_rows(self.run, self.model)]


@pytest.fixture
def stored(tmp_path: Path, tiny_model: Path) -> Stored:
    return Stored(tmp_path / "runs" / "a-run", tiny_model)


def test_everything_stored_once_is_good(stored: Stored) -> None:
    """Over two shards, with the right rows."""
    stored.store("left", KEYS[:3])
    stored.store("right", KEYS[3:])
    assert stored.faults() == []
    assert account(stored.run).num_doubles == 0


def test_a_dead_letter_counts_when_its_reason_is_explained(stored: Stored) -> None:
    """A lost worker is; a mismatch is not."""
    stored.store("left", KEYS[:3])
    stored.bury(KEYS[3], "worker-lost")
    assert stored.faults() == []
    assert account(stored.run).dead == {KEYS[3]}
    stored.bury(KEYS[3], "states-nan")
    [fault] = stored.faults()
    assert fault.startswith("nothing explains")
    assert "states-nan" in fault


def test_a_stored_sample_is_not_dead(stored: Stored) -> None:
    """Whatever its letter says."""
    stored.store("left", KEYS)
    stored.bury(KEYS[0], "states-nan")
    assert stored.faults() == []
    assert account(stored.run).dead == set()


def test_a_lost_key_is_found(stored: Stored) -> None:
    """Neither stored nor dead."""
    stored.store("left", KEYS[:3])
    faults = stored.faults()
    assert f"{KEYS[3]} is neither stored nor dead" in faults


def test_a_foreign_key_is_found(stored: Stored) -> None:
    """Stored and never planned."""
    stored.store("left", [*KEYS, "ab" * 16])
    assert f"{'ab' * 16} is not planned" in stored.faults()


def test_doubles_are_found_over_all_shards(stored: Stored) -> None:
    """Although readers list one of them."""
    stored.store("left", KEYS)
    stored.store("right", KEYS[:2])
    assert stored.faults() == [f"{key} is stored 2 times" for key in sorted(KEYS[:2])]
    assert account(stored.run).num_doubles == 2


def test_wrong_states_are_found_in_doubles_too(stored: Stored) -> None:
    """A difference of a thousandth, in a sample that no reader shows."""
    stored.store("left", KEYS)
    stored.store("right", KEYS[1:2], off_by=1e-3)
    assert stored.faults() == [
        f"{KEYS[1]} is stored 2 times",
        f"{KEYS[1]} in right-00001.h5 is wrong",
    ]


def test_swapped_rows_are_found(stored: Stored) -> None:
    """Two samples under each other's keys."""
    stored._states = dict(zip(KEYS, list(stored._states.values())[::-1], strict=True))
    stored.store("left", KEYS)
    assert len(stored.faults()) == 4
