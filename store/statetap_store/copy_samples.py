"""Copying the samples of a table into a new shard, one after another, each proven on the way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import xxhash
from statetap_contract import CheckError

from statetap_store.file_bytes import PIECE_BYTES, read_into, write_at
from statetap_store.index_row import ROW_DTYPE, ROW_MAGIC, STATE_SAMPLE, set_checksums
from statetap_store.layout import ByteRange, ShardLayout, token_bytes
from statetap_store.payload import payload_parts
from statetap_store.sample import SampleEntry
from statetap_store.sample_table import SampleTable
from statetap_store.shard_file import ShardFile

#: Fields of an index row that stay what they are.
_COPIED: Final = ("key", "num_tokens", "states_xxh3", "ids_xxh3", "mask_xxh3", "time_ns")

#: Index rows that are made at a time.
_ROWS_AT_A_TIME: Final = 1 << 16


def copy_payloads(
    table: SampleTable, fd: int, layout: ShardLayout, on_progress: Callable[[int, int], None]
) -> None:
    """Copies ids, masks and states of all samples, in the table's order.

    Args:
        table: what to copy.
        fd: the new shard.
        layout: of the new shard; it has room for exactly these samples.
        on_progress: called after each sample with the bytes copied and the bytes to copy.

    Raises:
        CheckError: kind ``payload-corrupt`` or ``payload-unreadable``.
        OSError: the new shard cannot be written.
    """
    buffer = memoryview(bytearray(PIECE_BYTES))
    sample_bytes = token_bytes(table.spec)
    next_token = 0
    starts = np.searchsorted(table.records["shard"], np.arange(len(table.shards) + 1)).tolist()
    for number, path in enumerate(table.shards):
        with ShardFile.open(path) as shard:
            source = shard.header.layout
            for entry in map(table.__getitem__, range(starts[number], starts[number + 1])):
                target = replace(entry, token_offset=next_token)
                both = zip(payload_parts(source, entry), payload_parts(layout, target), strict=True)
                for old, new in both:
                    copied = _copy(entry, shard.fd, old.where, fd, new.where.offset, buffer)
                    if copied != old.expected:
                        trouble = f"has {old.name} that fail their checksum"
                        raise _refused(entry, "payload-corrupt", trouble)
                next_token += entry.num_tokens
                on_progress(next_token * sample_bytes, layout.capacity_tokens * sample_bytes)


def _copy(
    entry: SampleEntry, source: int, where: ByteRange, target: int, place: int, buffer: memoryview
) -> int:
    """xxh3-64 of what was copied, which is less than ``where`` if the source ends early."""
    digest = xxhash.xxh3_64()
    for done in range(0, where.num_bytes, len(buffer)):
        piece = buffer[: where.num_bytes - done]
        try:
            num_read = read_into(source, piece, where.offset + done)
        except OSError as error:
            trouble = f"cannot be read ({error.strerror})"
            raise _refused(entry, "payload-unreadable", trouble) from error
        digest.update(piece[:num_read])
        write_at(target, piece[:num_read], place + done)
    return digest.intdigest()


def _refused(entry: SampleEntry, kind: str, trouble: str) -> CheckError:
    return CheckError(
        kind, f"sample {entry.key} in {entry.path} {trouble}: run 'statetap repair {entry.path}'"
    )


def write_index(table: SampleTable, fd: int, layout: ShardLayout) -> None:
    """Writes the rows of the samples that ``copy_payloads`` copied. Raises OSError."""
    next_token = 0
    for first in range(0, len(table), _ROWS_AT_A_TIME):
        records = table.records[first : first + _ROWS_AT_A_TIME]
        rows = np.zeros(len(records), ROW_DTYPE)
        rows["magic"], rows["state"] = ROW_MAGIC, STATE_SAMPLE
        for name in _COPIED:
            rows[name] = records[name]
        ends = next_token + np.cumsum(records["num_tokens"], dtype=np.uint64)
        rows["token_offset"] = ends - records["num_tokens"]
        # All is durable before the file has its name.
        rows["sequence"] = rows["num_durable"] = np.arange(first, first + len(records))
        set_checksums(rows)
        write_at(fd, rows.tobytes(), layout.row(first).offset)
        next_token = int(ends[-1])
