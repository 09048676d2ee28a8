"""Makes an export, or goes on with one that was stopped."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from statetap_contract import UsageError
from statetap_store.disk_errors import stop_for
from statetap_store.file_bytes import make_folders, sync_folder
from statetap_store.process_pool import OrderedMap, process_pool

from statetap_producer.exporting.checksum_list import CHECKSUMS_FILE, ChecksumList
from statetap_producer.exporting.export_plan import ExportPlan
from statetap_producer.exporting.export_record import RECORD_FILE, UNFINISHED_FILE
from statetap_producer.exporting.new_file import NewFile, publish, temporary_name
from statetap_producer.exporting.sample_list import SAMPLES_FILE, sample_lines
from statetap_producer.exporting.write_samples import (
    ProofBatch,
    SampleBatch,
    prove_batch,
    sample_batches,
    write_batch,
)

#: Below this, starting processes, which import torch each, takes longer than the work.
_SMALL_BYTES: Final = 512 << 20
#: Files that are proven at a time.
_PROOF_FILES: Final = 64

Handed = TypeVar("Handed")
Returned = TypeVar("Returned")


@dataclass(frozen=True, slots=True)
class ExportOutcome:
    """What was done."""

    #: Files that have a checksum, and how many of them were there already, proven by reading.
    num_files: int
    num_proven: int
    #: Files that were there and were not, byte for byte, what had been written.
    num_damaged: int


def export(
    plan: ExportPlan, *, num_processes: int, on_progress: Callable[[int, int], None]
) -> ExportOutcome:
    """Writes all files of an export that are not there yet, or no longer what they were.

    Stopped at any point and called again, with any number of processes, it ends with the same
    bytes. Files that are there are proven by reading them. ``export.json`` comes last.

    Args:
        plan: what to write.
        num_processes: how many may work; fewer do where there is little to do.
        on_progress: called with the bytes of states that are in place, and all of them.

    Raises:
        UsageError: kind ``export-running``.
        CheckError: kind ``payload-corrupt``, ``norm-differs``, ``not-finite`` or
            ``token-outside``: a sample, by its key.
        StopError: kind ``disk-full``, ``not-writable`` or ``shard-broken``.
        MissingError: kind ``process-killed``, or a shard is gone.
    """
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        with ChecksumList(plan.out / CHECKSUMS_FILE) as checksums:
            return _Export(plan, checksums, on_progress).make(num_processes)
    except OSError as error:
        raise stop_for(error, plan.out, "export") from error


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A file that is recorded and is something else."""

    place: int
    #: The recorded xxh128.
    digest: str


class _Export:
    """One export while it is made."""

    def __init__(
        self, plan: ExportPlan, checksums: ChecksumList, on_progress: Callable[[int, int], None]
    ) -> None:
        self._plan = plan
        self._checksums = checksums
        self._on_progress = on_progress
        self._num_bytes = 0
        self._total_bytes = int(plan.table.num_tokens.sum()) * plan.table.spec.row_bytes
        #: Recorded files that are no longer what was recorded, by name.
        self._damaged: dict[str, _Damaged] = {}
        #: New digests of such files.
        self._corrected: dict[str, str] = {}

    def make(self, num_processes: int) -> ExportOutcome:
        plan = self._plan
        self._refuse_stale_plan()
        if not plan.is_begun:
            self._begin()
        is_alone = num_processes == 1 or plan.num_bytes < _SMALL_BYTES
        workers: AbstractContextManager[OrderedMap] = (
            nullcontext(map) if is_alone else process_pool(num_processes)
        )
        handed: deque[SampleBatch] = deque()
        try:
            with workers as in_order:
                num_recorded = self._prove(in_order)
                self._write_samples(in_order, num_recorded, handed)
        except BaseException:
            # A process that was stopped leaves the file that it was writing.
            for batch in handed:
                for name in batch.names:
                    temporary_name(plan.out / name).unlink(missing_ok=True)
            raise
        num_files = self._write_companions(num_recorded)
        if self._corrected:
            self._checksums.correct(self._corrected)
        if (unfinished := plan.out / UNFINISHED_FILE).exists():
            unfinished.replace(plan.out / RECORD_FILE)
        sync_folder(plan.out)
        return ExportOutcome(num_files, num_recorded - len(self._damaged), len(self._damaged))

    def _refuse_stale_plan(self) -> None:
        out = self._plan.out
        is_begun = (out / UNFINISHED_FILE).exists() or (out / RECORD_FILE).exists()
        if is_begun != self._plan.is_begun:
            raise UsageError(
                "export-running",
                f"another process has exported into {out} just now: try again",
            )

    def _begin(self) -> None:
        """Writes which samples the export has, then what it is."""
        plan = self._plan
        names = map(plan.sample_name, range(len(plan.table)))
        lines = sample_lines(plan.table, names)
        _write_whole(plan.out / SAMPLES_FILE, lambda file: deque(map(file.write, lines), 0))
        record = json.dumps(plan.record, indent=2) + "\n"
        _write_whole(plan.out / UNFINISHED_FILE, lambda file: file.write(record.encode()))

    def _prove(self, in_order: OrderedMap) -> int:
        """Looks at all files that are recorded; how many these are."""
        plan = self._plan
        recorded = self._checksums.recorded(plan.file_names() if plan.is_begun else ())
        batches = (ProofBatch(plan.out, tuple(some)) for some in _chunks(recorded, _PROOF_FILES))
        place = 0
        for batch, proofs in _paired(in_order, prove_batch, batches):
            for (name, digest), is_right in zip(batch.files, proofs, strict=True):
                if not is_right:
                    self._damaged[name] = _Damaged(place, digest)
                elif place < len(plan.table):
                    self._advance(int(plan.table.records["num_tokens"][place]))
                place += 1
        if self._damaged and (record := plan.out / RECORD_FILE).exists():
            record.replace(plan.out / UNFINISHED_FILE)
        return place

    def _write_samples(
        self, in_order: OrderedMap, num_recorded: int, handed: deque[SampleBatch]
    ) -> None:
        num_samples = len(self._plan.table)
        damaged = [file.place for file in self._damaged.values() if file.place < num_samples]
        for places in (damaged, range(num_recorded, num_samples)):
            batches = sample_batches(self._plan, places)
            for batch, digests in _paired(in_order, write_batch, batches, handed):
                self._record(zip(batch.names, digests, strict=True))
                self._advance(int(batch.table.num_tokens.sum()))

    def _write_companions(self, num_recorded: int) -> int:
        """Writes all other files that are not right already; how many files there are."""
        out = self._plan.out
        place = len(self._plan.table)
        for name, write in self._plan.trainer.companions(self._plan.content):
            if place >= num_recorded or name in self._damaged:
                folder = PurePosixPath(name).parent
                make_folders(out / folder, len(folder.parts))
                self._record([(name, _write_whole(out / name, write))])
            place += 1
        return place

    def _record(self, files: Iterable[tuple[str, str]]) -> None:
        """Takes names and digests of files that were written."""
        new = []
        for name, digest in files:
            if name not in self._damaged:
                new.append((name, digest))
            elif digest != self._damaged[name].digest:
                # Another version of a library wrote the same tensors in other bytes.
                self._corrected[name] = digest
        self._checksums.append(new)

    def _advance(self, num_tokens: int) -> None:
        self._num_bytes += num_tokens * self._plan.table.spec.row_bytes
        self._on_progress(self._num_bytes, self._total_bytes)


def _write_whole(path: Path, write: Callable[[NewFile], object]) -> str:
    """Has a file written that is there whole and durable, or not at all; returns its xxh128."""
    file = NewFile(path)
    try:
        write(file)
        digest = file.end()
        publish([file])
    finally:
        file.discard()
    return digest


def _chunks(items: Iterable[Handed], size: int) -> Iterator[list[Handed]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def _paired(
    in_order: OrderedMap,
    function: Callable[[Handed], Returned],
    pieces: Iterable[Handed],
    handed: deque[Handed] | None = None,
) -> Iterator[tuple[Handed, Returned]]:
    """Pieces with what became of them; ``handed`` holds those of which that is not known yet."""
    waiting: deque[Handed] = deque() if handed is None else handed

    def hand_out() -> Iterator[Handed]:
        for piece in pieces:
            waiting.append(piece)
            yield piece

    for answer in in_order(function, hand_out()):
        yield waiting.popleft(), answer
