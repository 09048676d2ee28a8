"""Sealing: giving a full shard a header of exact sizes, and cutting off what it did not use.

The new header is made durable in its copy first. From then on the shard counts as sealed: a
crash at any later point leaves a header that is old, torn or new, and whoever opens the shard
finds the new one in the copy and, if it may write, puts it in place.
"""

import os
from dataclasses import dataclass, replace
from typing import Self

from statetap_store.file_bytes import write_at
from statetap_store.header import ShardHeader
from statetap_store.header_copies import (
    OPEN_SLOT,
    SEALED_SLOT,
    clear_copy,
    copy_range,
    vouched_header,
    write_copy,
)
from statetap_store.layout import ByteRange
from statetap_store.shard_file import ShardFile


@dataclass(frozen=True, slots=True)
class Seal:
    """The sealed header of a shard, and the length that sealing cuts the file to."""

    encoded: bytes
    file_bytes: int

    @classmethod
    def of(cls, header: ShardHeader, num_rows: int, num_tokens: int) -> Self:
        """The seal of a shard that has this many rows and tokens."""
        layout = replace(header.layout, capacity_samples=num_rows, capacity_tokens=num_tokens)
        return cls(replace(header, is_sealed=True, layout=layout).encode(), layout.file_bytes)

    @property
    def places(self) -> tuple[ByteRange, ...]:
        """All that sealing writes. With their room reserved, a full disk cannot interrupt it."""
        return (
            copy_range(SEALED_SLOT, self.encoded),
            ByteRange(0, len(self.encoded)),
            copy_range(OPEN_SLOT, self.encoded),
        )


def write_seal(fd: int, seal: Seal) -> None:
    """Seals an open shard, all of whose rows are durable.

    Raises:
        OSError: the shard is unsealed or will be sealed when it is opened next.
    """
    _finish_seal(fd, seal.encoded, seal.file_bytes)


def restore_header(shard: ShardFile) -> None:
    """Puts the proven header in place if another stands there, and finishes a seal.

    The shard is open for writing.

    Raises:
        OSError: nothing is lost; try again.
    """
    copies, proven = shard.copies, shard.copies.proven
    if proven is None:
        return
    if shard.header.is_sealed:
        if not copies.is_intact or copies.slots != (proven, proven) or shard.has_slack:
            _finish_seal(shard.fd, proven, shard.header.layout.file_bytes)
        else:
            # Whoever cut the file may have been killed before that was durable.
            os.fsync(shard.fd)
        return
    if SEALED_SLOT in copies.damaged_slots:
        # A crash tore the copy before it counted.
        clear_copy(shard.fd, SEALED_SLOT)
        os.fsync(shard.fd)
    if not copies.is_intact:
        write_at(shard.fd, proven, 0)
        os.fsync(shard.fd)


def rebuild_copy(shard: ShardFile) -> bool:
    """Gives a shard without any intact copy of its header one again; False where none can be had.

    It is the header on disk, if that can be proven: by what is left of a copy, or because
    everything it says makes the very same bytes again. The shard is open for writing.

    Raises:
        OSError: try again.
    """
    region, header = shard.copies.on_disk, shard.header
    proven = vouched_header(shard.fd, region)
    if proven is None:
        encoded = header.encode()
        proven = encoded if region.rstrip(b"\0") == encoded.rstrip(b"\0") else None
    if proven is not None:
        write_copy(shard.fd, SEALED_SLOT if header.is_sealed else OPEN_SLOT, proven)
        os.fsync(shard.fd)
    return proven is not None


def _finish_seal(fd: int, encoded: bytes, file_bytes: int) -> None:
    """Each step may find itself done already."""
    write_copy(fd, SEALED_SLOT, encoded)
    os.fsync(fd)
    write_at(fd, encoded, 0)
    os.fsync(fd)
    # The old header has served; damage to the other copy must not bring it back.
    write_copy(fd, OPEN_SLOT, encoded)
    os.fsync(fd)
    os.ftruncate(fd, file_bytes)
    os.fsync(fd)
