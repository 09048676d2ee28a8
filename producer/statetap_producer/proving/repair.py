"""Repairs shards, and finds out what a run has lost with them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from statetap_contract import MissingError, StatetapError
from statetap_store import Fault, RepairReport, RunScanner, repair_shard

from statetap_producer.run.run_folder import run_of_shard, shards_at


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """What became of all shards."""

    #: One a shard. One that could not be repaired says why in what is left.
    reports: tuple[RepairReport, ...]
    #: Samples that were given up and are in no other shard beside theirs either.
    lost: tuple[Fault, ...]
    #: Folders of the runs whose samples these are, as far as they are known.
    runs: tuple[Path, ...]

    @property
    def is_good(self) -> bool:
        """Whether all shards are intact now; there may be less in them than there was."""
        return bool(self.reports) and all(report.is_intact for report in self.reports)


#: Called with a shard, the bytes of it that are checked, and all its bytes to check.
OnShardProgress = Callable[[Path, int, int], None]


def repair(paths: Sequence[Path], on_progress: OnShardProgress) -> RepairOutcome:
    """Repairs shards, each for itself.

    Args:
        paths: shard files, folders of shards, and run folders, which stand for all their shards.
        on_progress: called while a shard is read.

    Raises:
        MissingError: a shard or run record is not there; nothing was done yet.
    """
    shards = shards_at(*paths)
    for shard in shards:
        if not shard.is_file():
            raise MissingError("shard-missing", f"there is no shard {shard}: check the path")
    reports = tuple(_repaired(shard, partial(on_progress, shard)) for shard in shards)
    lost = _not_stored(reports)
    runs = (
        run_of_shard(report.path) for report in reports if not set(lost).isdisjoint(report.lost)
    )
    return RepairOutcome(reports, lost, tuple(dict.fromkeys(run for run in runs if run)))


def _repaired(shard: Path, on_progress: Callable[[int, int], None]) -> RepairReport:
    try:
        return repair_shard(shard, on_progress=on_progress)
    except StatetapError as error:
        # The keys that the other shards have lost must be told all the same.
        return RepairReport(shard, 0, (), (), (Fault(error.kind, None, error.message),))


def _not_stored(reports: Sequence[RepairReport]) -> tuple[Fault, ...]:
    lost = [fault for report in reports for fault in report.lost]
    stored: set[str] = set()
    for folder in {report.path.parent for report in reports if report.lost}:
        scanner = RunScanner(folder)
        scanner.refresh()
        stored |= scanner.keys & {fault.key for fault in lost if fault.key is not None}
    return tuple(fault for fault in lost if fault.key not in stored)
