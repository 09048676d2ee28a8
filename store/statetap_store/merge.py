"""Merging: all samples of many shards in one sealed file, each key once."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from statetap_contract import CheckError, MissingError, UsageError

from statetap_store.copy_samples import copy_payloads, write_index
from statetap_store.disk_errors import stop_for
from statetap_store.header import ShardHeader
from statetap_store.header_copies import encode_copy
from statetap_store.index_row import IndexRow
from statetap_store.layout import ShardLayout, token_bytes
from statetap_store.payload import is_payload_intact
from statetap_store.provenance import Provenance, joined_provenance
from statetap_store.publish import publish_shard
from statetap_store.sample_table import SampleTable
from statetap_store.shard_file import ShardFile
from statetap_store.shard_lock import ShardLock
from statetap_store.verify import verify_shard

#: Faults of an index that cost samples, or would make a merged shard faulty.
_NOT_MERGED: Final = frozenset({"row-corrupt", "row-outside", "rows-overlap"})


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What was merged."""

    path: Path
    num_shards: int
    num_samples: int
    num_tokens: int
    #: Bytes of states, ids and masks.
    num_bytes: int
    #: Samples that were left out, as an earlier shard has their key.
    num_duplicates: int


def merge_shards(
    paths: Sequence[Path], out: Path, *, on_progress: Callable[[int, int], None]
) -> MergeReport:
    """Writes all samples of some shards to one sealed shard.

    Samples come by shard name, then by row; of several with one key the first is taken, as
    readers do. Every payload is compared with its checksums on the way. The shards may be growing:
    what is appended after the start is left out.

    Args:
        paths: shards, folders of shards and run folders.
        out: the new shard. It appears whole and durable, or not at all.
        on_progress: called with the payload bytes copied, and those to copy.

    Raises:
        UsageError: kind ``shard-exists``: there is a file ``out``; kind ``spec-mismatch``.
        MissingError: as ``SampleTable.scan``; kind ``folder-missing``.
        CheckError: kind ``row-corrupt``, ``row-outside``, ``rows-overlap``, ``payload-corrupt``,
            ``payload-unreadable``: what must be repaired first. Kind ``no-samples``,
            ``provenance-too-long``, or as ``SampleTable.scan``.
        StopError: kind ``disk-full``, ``not-writable``, ``shard-broken`` or ``shard-locked``.
    """
    if out.exists():
        raise UsageError("shard-exists", f"{out} exists already: name a file that does not")
    if not out.parent.is_dir():
        raise MissingError("folder-missing", f"there is no folder {out.parent}: make it first")
    table = SampleTable.scan(*paths)
    provenance = _common_provenance(table)
    for path in table.shards:
        check_complete(path)
    if not len(table):
        raise CheckError("no-samples", "there are no samples to merge in any of the shards")
    num_tokens = int(table.num_tokens.sum())
    created = datetime.now(UTC).isoformat(timespec="seconds")
    layout = ShardLayout.of(table.spec, len(table), num_tokens)
    header = ShardHeader(table.spec, provenance, created, is_sealed=True, layout=layout)
    _check_fits(header)
    lock = ShardLock(out)
    try:
        publish_shard(out, header, lambda fd: _fill(fd, out, layout, table, on_progress))
    finally:
        # Nothing is ever appended to a sealed shard.
        lock.discard()
    return MergeReport(
        path=out,
        num_shards=len(table.shards),
        num_samples=len(table),
        num_tokens=num_tokens,
        num_bytes=num_tokens * token_bytes(table.spec),
        num_duplicates=table.num_duplicates,
    )


def _common_provenance(table: SampleTable) -> Provenance:
    def parts() -> Iterator[Provenance]:
        for path in table.shards:
            with ShardFile.open(path) as shard:
                yield shard.header.provenance

    try:
        return joined_provenance(parts())
    except ValueError as error:
        raise UsageError(
            "spec-mismatch",
            f"the shards come from servers of different settings, {error}: merge those of each "
            "setting by themselves",
        ) from error


def check_complete(path: Path) -> None:
    """Raises CheckError where samples of a shard are not read that may be no crash's remains.

    Readers pass over them. A copy would be without them, and nobody would know.

    Raises:
        CheckError: kind ``row-corrupt``, ``row-outside``, ``rows-overlap``, ``payload-corrupt``.
    """
    for fault in verify_shard(path, quick=True).faults:
        if fault.kind in _NOT_MERGED:
            raise CheckError(fault.kind, f"{fault.message}: run 'statetap repair {path}'")
    with ShardFile.open(path) as shard:
        index = shard.load_index()
        for row in map(IndexRow.of, index.late):
            if row.is_sample and not is_payload_intact(shard.fd, shard.header.layout, row):
                raise CheckError(
                    "payload-corrupt",
                    f"sample {row.key} in {path} is damaged, or was not complete when its worker "
                    f"was killed: run 'statetap repair {path}'",
                )


def _check_fits(header: ShardHeader) -> None:
    try:
        encode_copy(header.encode())
    except ValueError as error:
        raise CheckError(
            "provenance-too-long",
            "the shards come from more workers and hosts than one header can name: merge them in "
            "several parts",
        ) from error


def _fill(
    fd: int,
    out: Path,
    layout: ShardLayout,
    table: SampleTable,
    on_progress: Callable[[int, int], None],
) -> None:
    try:
        os.posix_fallocate(fd, 0, layout.file_bytes)
    except OSError as error:
        task = f"merge {len(table):,} samples, which takes {layout.file_bytes:,} bytes,"
        raise stop_for(error, out, task) from error
    copy_payloads(table, fd, layout, on_progress)
    write_index(table, fd, layout)
