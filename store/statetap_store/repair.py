"""Repair of a damaged shard: puts right what can be, and says which samples are lost.

First the header and the length, then pages of the index that cannot be read and rows of which
one bit is wrong, then everything that no sound sample needs. Each step is durable before the next
one, and leaves a shard on which repair can start over; only what is proven to be of no use, or
cannot be read, is written over.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from statetap_contract import CheckError, MissingError

from statetap_store.disk_errors import stop_for
from statetap_store.file_bytes import read_range, write_at
from statetap_store.index_faults import damaged_rows, header_faults
from statetap_store.index_row import ROW_BYTES, mended_row
from statetap_store.layout import BACKUP_BYTES, BACKUP_OFFSET, PAGE_BYTES, ByteRange
from statetap_store.payload import fits
from statetap_store.payload_faults import payload_faults
from statetap_store.publish import remove_leftover
from statetap_store.recover import write_recovery
from statetap_store.repair_plan import plan_repair
from statetap_store.sealing import rebuild_copy, restore_header
from statetap_store.shard_file import ShardFile, unreadable
from statetap_store.shard_index import ShardIndex, read_row
from statetap_store.shard_lock import ShardLock
from statetap_store.shard_report import Fault, RepairReport
from statetap_store.verify import verify_shard

#: What opening says of a file that has lost its header.
_NO_HEADER: Final = frozenset({"shard-not-hdf5", "shard-unreadable", "shard-truncated"})

#: What each fault of the header has become.
_MENDED_HEADERS: Final = {
    "header-unproven": "had no intact copy of its header, which was proven and copied again",
    "seal-unfinished": "was interrupted while it was sealed, and is sealed now",
    "header-damaged": "had a damaged header, which was put back from its copy",
    "backup-damaged": "had a damaged copy of its header, which was made again",
    "shard-truncated": "had been cut short and has its length again",
}


def repair_shard(
    path: Path, *, on_progress: Callable[[int, int], None] | None = None
) -> RepairReport:
    """Repairs a shard that no writer has open. Every payload is checked; a second time is idle.

    Samples that are sound stay as and where they are. Those that are not become void rows.

    Args:
        path: the shard.
        on_progress: called after each payload with the bytes checked and the bytes to check.

    Raises:
        MissingError: kind ``shard-missing`` or ``shard-unreachable``.
        CheckError: kind ``beyond-repair``, header and copies are gone; ``shard-unreadable``, the
            disk gives neither; ``shard-foreign`` or ``shard-newer``. The file is as it was.
        StopError: kind ``shard-locked``, a writer is at work; ``disk-full``, ``not-writable`` or
            ``shard-broken``: repeat it when the disk is in order.
    """
    if not path.is_file():
        raise MissingError("shard-missing", f"there is no shard {path}: check the path")
    lock = ShardLock(path)
    try:
        remove_leftover(path)
        headers = _mend_header(path, lock)
        with _opened(path, lock) as shard:
            blank = tuple(_blank_unreadable(shard))
            rows = tuple(_mend_rows(shard))
            os.fdatasync(shard.fd)
            index = shard.load_index()
            plan = plan_repair(shard, index, on_progress or (lambda *_: None))
            lost = (*plan.lost, *_lost_behind(shard, index, blank))
            write_recovery(shard.fd, shard.header.layout, plan.recovery)
            os.fdatasync(shard.fd)
    except OSError as error:
        raise stop_for(error, path, "repair the shard") from error
    finally:
        lock.close()
    report = verify_shard(path, quick=True)
    mended = (*headers, *rows, *plan.mended)
    return RepairReport(path, report.num_samples, mended, lost, report.faults)


@contextmanager
def _opened(path: Path, lock: ShardLock) -> Iterator[ShardFile]:
    with ShardFile.open(path, os.O_RDWR) as shard:
        lock.hold(shard.fd)
        yield shard


def _mend_header(path: Path, lock: ShardLock) -> tuple[Fault, ...]:
    """Puts header, copies and length in order; raises CheckError as ``repair_shard``."""
    try:
        with _opened(path, lock) as shard:
            faults = tuple(header_faults(shard))
            if shard.copies.proven is None and not rebuild_copy(shard):
                _check_disk(path)
                raise _beyond_repair(path)
        with _opened(path, lock) as shard:
            restore_header(shard)
            file_bytes = shard.header.layout.file_bytes
            if os.fstat(shard.fd).st_size < file_bytes:
                os.ftruncate(shard.fd, file_bytes)
            os.fsync(shard.fd)
    except CheckError as error:
        if error.kind in _NO_HEADER:
            _check_disk(path)
            raise _beyond_repair(path) from error
        raise
    return tuple(Fault(f.kind, None, f"{path} {_MENDED_HEADERS[f.kind]}") for f in faults)


def _check_disk(path: Path) -> None:
    """Raises CheckError, kind ``shard-unreadable``, where header or copies cannot be read.

    A header that cannot be read today is not one that is gone.
    """
    try:
        with path.open("rb") as file:
            read_range(file.fileno(), ByteRange(0, BACKUP_OFFSET + BACKUP_BYTES))
    except OSError as error:
        raise unreadable(path, error) from error


def _beyond_repair(path: Path) -> CheckError:
    return CheckError(
        "beyond-repair",
        f"{path} has no readable header and no intact copy of one: if it was a shard, move it out "
        "of the run's folder, and 'statetap enqueue' queues its samples anew",
    )


def _blank_unreadable(shard: ShardFile) -> Iterator[int]:
    """Empties the pages of the index that the disk does not give, and tells their rows.

    A disk replaces a bad sector when it is written. That takes a whole page: to write a part of
    one, the system reads it first.
    """
    index = shard.header.layout.index
    for offset in range(index.offset, index.end, PAGE_BYTES):
        try:
            read_range(shard.fd, ByteRange(offset, min(PAGE_BYTES, index.end - offset)))
        except OSError:
            write_at(shard.fd, bytes(PAGE_BYTES), offset)
            first = (offset - index.offset) // ROW_BYTES
            yield from range(first, first + PAGE_BYTES // ROW_BYTES)


def _lost_behind(shard: ShardFile, index: ShardIndex, blank: tuple[int, ...]) -> Iterator[Fault]:
    """What was in rows that could not be read, if no other row shows that they were in use."""
    behind = [sequence for sequence in blank if sequence >= index.end]
    if behind and not shard.header.is_sealed:
        yield Fault(
            "row-corrupt",
            None,
            f"index rows from {behind[0]} on of {shard.path} could not be read, the samples in "
            "them are lost",
        )


def _mend_rows(shard: ShardFile) -> Iterator[Fault]:
    """Puts rows right of which one bit is wrong, if what they then say is true."""
    layout = shard.header.layout
    for sequence in damaged_rows(shard, shard.load_index()):
        where = layout.row(sequence)
        row = mended_row(read_row(shard.fd, layout, sequence), sequence)
        if row is None or not fits(layout, row):
            continue
        if row.is_sample and any(payload_faults(shard, row, has_digest_keys=False)):
            continue
        write_at(shard.fd, row.encode(), where.offset)
        message = f"index row {sequence} of {shard.path} had one wrong bit, which was put right"
        yield Fault("row-corrupt", row.key or None, message)
