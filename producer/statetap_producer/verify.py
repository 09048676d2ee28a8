"""Proves shards, and a run's shards against its plan."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from statetap_contract import Prompt, sample_key
from statetap_store import Fault, ShardReader, ShardReport, verify_shard

from statetap_producer.counted import counted
from statetap_producer.run_folder import RunFolder
from statetap_producer.run_state import RunState


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found."""

    #: One a shard.
    reports: tuple[ShardReport, ...]
    #: What is wrong between a run's plan and its shards.
    run_faults: tuple[Fault, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that is wrong, shards first."""
        return (*(fault for report in self.reports for fault in report.faults), *self.run_faults)

    @property
    def is_good(self) -> bool:
        """Something was checked, and nothing is wrong."""
        return bool(self.reports) and not self.faults


#: Called with a shard, the bytes of it that are checked, and all its bytes to check.
OnShardProgress = Callable[[Path, int, int], None]


def verify(paths: Sequence[Path], *, quick: bool, on_progress: OnShardProgress) -> Verdict:
    """Checks shards and run folders.

    Args:
        paths: shard files, and run folders, which stand for all their shards and their plan.
        quick: leave payloads alone.
        on_progress: called while a shard is read.

    Raises:
        MissingError: a shard, run record or plan is not there.
        StatetapError: what reading a run raises.
    """
    reports: list[ShardReport] = []
    run_faults: list[Fault] = []
    for path in paths:
        run = RunFolder(path) if path.is_dir() else None
        shards = run.shard_files() if run else [path]
        reports += [
            verify_shard(shard, quick=quick, on_progress=partial(on_progress, shard))
            for shard in shards
        ]
        if run is not None:
            broken = {report.path for report in reports if report.faults}
            intact = [shard for shard in shards if shard not in broken]
            run_faults += _run_faults(run, intact, quick=quick)
            if not shards:
                run_faults.append(Fault("no-shards", None, f"{run.shards} holds no shards"))
    return Verdict(tuple(reports), tuple(run_faults))


def _run_faults(run: RunFolder, intact: Sequence[Path], *, quick: bool) -> Iterator[Fault]:
    state = RunState(run)
    pending = state.planned - state.stored - state.dead
    if pending:
        yield Fault(
            "sample-missing",
            min(pending),
            f"{counted(len(pending), 'planned prompt')} {_be(pending)} neither stored nor dead; "
            f"run: statetap enqueue --run {run.path}",
        )
    if state.unplanned:
        yield Fault(
            "sample-unplanned",
            min(state.unplanned),
            f"{counted(len(state.unplanned), 'sample')} in {run.shards} {_be(state.unplanned)} not "
            "in the run's plan; move the shards of other runs away",
        )
    for shard in intact:
        with ShardReader(shard) as reader:
            if reader.spec != state.spec:
                yield Fault(
                    "spec-differs",
                    None,
                    f"{shard} holds states of capture spec {reader.spec.digest}, the run has "
                    f"{state.spec.digest}; move it to a run of its own",
                )
            elif not quick:
                yield from _prompt_faults(reader)
    if not quick:
        yield from _plan_faults(state)


def _be(things: set[str]) -> str:
    return "is" if len(things) == 1 else "are"


def _prompt_faults(reader: ShardReader) -> Iterator[Fault]:
    """A key is a digest of ids and mask: where it fits, they are the planned ones."""
    spec_digest = reader.spec.digest
    for entry in reader.samples:
        if sample_key(spec_digest, _prompt_of(*reader.read_prompt(entry))) != entry.key:
            yield Fault(
                "prompt-differs",
                entry.key,
                f"sample {entry.key} in {reader.path} holds token ids or a loss mask that its "
                "prompt does not have",
            )


def _plan_faults(state: RunState) -> Iterator[Fault]:
    spec_digest = state.spec.digest
    for row in state.plan.rows():
        if sample_key(spec_digest, row.prompt) != row.key:
            yield Fault(
                "plan-row-differs",
                row.key,
                f"prompt {row.key} of the plan, line {row.source_line} of the dataset, does not "
                "have this key",
            )


def _prompt_of(token_ids: npt.NDArray[np.int32], loss_mask: npt.NDArray[np.uint8]) -> Prompt:
    edges = np.flatnonzero(np.diff(loss_mask, prepend=0, append=0)).tolist()
    spans = tuple(zip(edges[::2], edges[1::2], strict=True))
    return Prompt(array("i", token_ids.tobytes()), spans)
