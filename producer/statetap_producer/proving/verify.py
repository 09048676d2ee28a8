"""Proves shards, and a run's shards against its plan."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from statetap_contract import sample_key
from statetap_store import Fault, ShardReport, verify_shards

from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder, is_plain_folder, shards_at
from statetap_producer.terminal.counted import counted


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


def verify(
    paths: Sequence[Path],
    *,
    quick: bool,
    num_processes: int,
    on_progress: Callable[[int, int], None],
) -> Verdict:
    """Checks shards and run folders.

    Args:
        paths: shard files, folders of shards, and run folders, which stand for their plan too.
        quick: leave payloads alone.
        num_processes: how many may share the work.
        on_progress: called with the bytes checked and the bytes to check, over all shards.

    Raises:
        MissingError: a shard, run record or plan is not there.
        StatetapError: what reading a run raises.
    """
    runs = [RunFolder(path) for path in paths if path.is_dir() and not is_plain_folder(path)]
    shards = shards_at(*paths)
    reports = verify_shards(
        shards,
        quick=quick,
        has_digest_keys=True,
        num_processes=num_processes,
        on_progress=on_progress,
    )
    run_faults = [fault for run in runs for fault in _run_faults(run, quick=quick)]
    return Verdict(reports, tuple(run_faults))


def _run_faults(run: RunFolder, *, quick: bool) -> Iterator[Fault]:
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
    for shard, spec in state.shard_specs.items():
        if spec != state.spec:
            yield Fault(
                "spec-differs",
                None,
                f"{shard} holds states of capture spec {spec.digest}, the run has "
                f"{state.spec.digest}; move it to a run of its own",
            )
    if not run.shard_files():
        yield Fault("no-shards", None, f"{run.shards} holds no shards")
    if not quick:
        yield from _plan_faults(state)


def _be(things: set[str]) -> str:
    return "is" if len(things) == 1 else "are"


def _plan_faults(state: RunState) -> Iterator[Fault]:
    spec_digest = state.spec.digest
    for row in state.plan.rows():
        if sample_key(spec_digest, row.prompt) != row.key:
            yield Fault(
                "plan-row-differs",
                row.key,
                f"prompt {row.key} of the plan, {row.source_file}:{row.source_line}, does not have "
                "this key",
            )
