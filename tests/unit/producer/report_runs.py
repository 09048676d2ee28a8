"""Runs made by hand for reports: what is in them is written down here, row by row."""

import dataclasses
import json
import time
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
from statetap_contract import CaptureSpec, FailedTry, Prompt
from statetap_local.made_runs import keyed, write_run
from statetap_producer.run.plan import PlannedPrompt
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import LeftOut
from statetap_store import Provenance, ShardSet

#: Three slots of four float32: rows of 48 bytes, 53 a token with id and mask.
SPEC = CaptureSpec("tiny", "r1", (1, 3), "post", 4, "float32")
TOKEN_BYTES = 53

START_S = 1_800_000_000

#: Norms 5, 10 and 1.
ROW = (3, 4, 0, 0, 0, 0, 6, 8, 1, 0, 0, 0)


class Moment:
    """The time that stands beside samples, in seconds after ``START_S``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.second: float = 0
        fake = SimpleNamespace(**vars(time))
        fake.time_ns = lambda: int((START_S + self.second) * 1_000_000_000)
        monkeypatch.setattr("statetap_store.writer.time", fake)


def prompt(number: int, num_tokens: int, *spans: tuple[int, int]) -> Prompt:
    """A prompt that no other number has."""
    ids = array("i", [number, *range(1, num_tokens)])
    return Prompt(ids, spans or ((0, 1),))


def planned_run(folder: Path, prompts: Iterable[Prompt], spec: CaptureSpec = SPEC) -> RunFolder:
    """A run of these prompts."""
    return write_run(folder, spec, (keyed(spec, each) for each in prompts))


def change_record(
    run: RunFolder, *, num_duplicates: int = 0, left_out: Sequence[LeftOut] = ()
) -> None:
    """Has the run's record tell of rows of the dataset that were not planned."""
    record = run.read_record()
    num_left_out = sum(reason.num_rows for reason in left_out)
    counts = dataclasses.replace(
        record.counts,
        num_read=record.counts.num_planned + num_duplicates + num_left_out,
        num_duplicates=num_duplicates,
    )
    run.write_record(dataclasses.replace(record, counts=counts, left_out=tuple(left_out)))


def put(
    run: RunFolder,
    row: PlannedPrompt,
    states: npt.NDArray[np.generic] | None = None,
    *,
    worker: str = "w-00",
    host: str = "gpu-1",
) -> None:
    """Stores a sample as a worker does; its rows are ``ROW`` unless told."""
    spec = run.read_record().inputs.spec
    provenance = Provenance(run.name, worker, host, "0.5.23", "0.1.0", (2, 4))
    if states is None:
        states = np.tile(np.array(ROW, np.float32), (row.prompt.num_tokens, 1))
    with ShardSet(run.shards, worker, 1 << 20, spec, provenance) as shards:
        mask = np.frombuffer(row.prompt.loss_mask(), np.uint8)
        shards.append(row.key, np.array(row.prompt.token_ids, np.int32), mask, states)
        shards.commit()


def fail(run: RunFolder, key: str, kind: str, server: str = "http://a:30000") -> None:
    """Notes a failed try as a worker does."""
    failed = FailedTry(key, 1, kind, server, "2027-01-15T08:00:00+00:00")
    run.tries.mkdir(exist_ok=True)
    with (run.tries / "w-00.jsonl").open("a") as stream:
        stream.write(json.dumps(failed.to_json()) + "\n")
