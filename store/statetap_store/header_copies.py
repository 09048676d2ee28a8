"""The header's copies: how a header that was torn or damaged is recognised and replaced.

``header_backup`` has two slots, each ``length`` (u8), ``xxh3-64`` (u8) and a copy of the header.
Slot 0 is filled before the shard gets its name. Slot 1 is filled by sealing and made durable,
before the header itself is rewritten and then slot 0. So a right slot 1 means that the shard is
sealed, or was about to be and must be: no sample is ever appended once it is there.

What the disk does not give counts as damaged, as long as one of the three is of use. Slots are
written in whole pages: a page that cannot be read can be written, but not in part.
"""

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from statetap_store.file_bytes import read_range, write_at
from statetap_store.layout import ALIGNMENT, BACKUP_BYTES, BACKUP_OFFSET, PAGE_BYTES, ByteRange

#: Bytes of one slot; there are two.
SLOT_BYTES: Final = BACKUP_BYTES // 2

#: Slot of the header that the shard was made with, and the one that sealing fills first.
OPEN_SLOT: Final = 0
SEALED_SLOT: Final = 1

_PREFIX: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class HeaderCopies:
    """The header region as it stands on disk, and what its copies say it should be."""

    #: What the file starts with: as many bytes as the proven header has, or the whole region.
    #: Empty where the disk does not give it.
    on_disk: bytes
    #: What each slot holds; None where it is empty or fails its checksum.
    slots: tuple[bytes | None, bytes | None]
    #: Slots that are neither empty nor right.
    damaged_slots: tuple[int, ...]
    #: Why one of the three could not be read, None where all could.
    disk_error: OSError | None

    @property
    def proven(self) -> bytes | None:
        """The header this shard must have, None when no copy is right."""
        return self.slots[SEALED_SLOT] or self.slots[OPEN_SLOT]

    @property
    def best(self) -> bytes:
        """The proven header, or what stands on disk when nothing is proven."""
        return self.proven or self.on_disk

    @property
    def is_intact(self) -> bool:
        """Whether the header on disk is the proven one."""
        return self.proven is not None and self.on_disk == self.proven

    @property
    def is_seal_unfinished(self) -> bool:
        """Whether sealing filled its slot and did not get to the other one."""
        opened, sealed = self.slots
        return sealed is not None and opened is not None and opened != sealed


def read_copies(fd: int) -> HeaderCopies:
    """Reads the header and both slots of an open file, whatever it is.

    Raises:
        OSError: no copy is right, and the header cannot be read.
    """
    slots: list[bytes | None] = []
    damaged: list[int] = []
    disk_error: OSError | None = None
    for slot in (OPEN_SLOT, SEALED_SLOT):
        try:
            header, is_damaged = _read_slot(fd, slot)
        except OSError as error:
            header, is_damaged, disk_error = None, True, error
        slots.append(header)
        if is_damaged:
            damaged.append(slot)
    opened, sealed = slots
    proven = sealed or opened
    try:
        on_disk = read_range(fd, ByteRange(0, len(proven) if proven else ALIGNMENT))
    except OSError as error:
        if proven is None:
            raise
        on_disk, disk_error = b"", error
    return HeaderCopies(on_disk, (opened, sealed), tuple(damaged), disk_error)


def vouched_header(fd: int, region: bytes) -> bytes | None:
    """The header at the start of ``region`` if a damaged copy of it still vouches for it.

    A copy has the header itself and its checksum. Either is enough.
    """
    for slot in (SEALED_SLOT, OPEN_SLOT):
        try:
            content = read_range(fd, ByteRange(slot_offset(slot), SLOT_BYTES))
        except OSError:
            continue
        length, expected = _PREFIX.unpack(content[: _PREFIX.size].ljust(_PREFIX.size, b"\0"))
        if 0 < length <= len(region) and xxhash.xxh3_64_intdigest(region[:length]) == expected:
            return region[:length]
        header = content[_PREFIX.size :].rstrip(b"\0")
        if header and header == region.rstrip(b"\0"):
            return region[: _whole_pages(len(header))]
    return None


def encode_copy(header: bytes) -> bytes:
    """A slot's content, whole pages. Raises ValueError for a header that does not fit."""
    if _PREFIX.size + len(header) > SLOT_BYTES:
        raise ValueError(f"a header of {len(header)} bytes does not fit: shorten the provenance")
    copy = _PREFIX.pack(len(header), xxhash.xxh3_64_intdigest(header)) + header
    return copy.ljust(_whole_pages(len(copy)), b"\0")


def write_copy(fd: int, slot: int, header: bytes) -> None:
    """Fills a slot; the caller syncs. Raises OSError, and ValueError as ``encode_copy``."""
    write_at(fd, encode_copy(header), slot_offset(slot))


def copy_range(slot: int, header: bytes) -> ByteRange:
    """Where the copy of a header lies."""
    return ByteRange(slot_offset(slot), _whole_pages(_PREFIX.size + len(header)))


def clear_copy(fd: int, slot: int) -> None:
    """Empties a slot, which needs no room on the disk; the caller syncs. Raises OSError."""
    write_at(fd, bytes(PAGE_BYTES), slot_offset(slot))


def is_seal_begun(fd: int) -> bool:
    """Whether sealing has filled its slot, or part of it: the header is to be read again."""
    return any(read_range(fd, ByteRange(slot_offset(SEALED_SLOT), _PREFIX.size)))


def slot_offset(slot: int) -> int:
    """Where a slot starts in the file."""
    return BACKUP_OFFSET + slot * SLOT_BYTES


def _read_slot(fd: int, slot: int) -> tuple[bytes | None, bool]:
    """The slot's copy, and whether the slot is damaged. Raises OSError."""
    offset = slot_offset(slot)
    prefix = read_range(fd, ByteRange(offset, _PREFIX.size))
    if not any(prefix):
        return None, slot == OPEN_SLOT
    length, expected = _PREFIX.unpack(prefix.ljust(_PREFIX.size, b"\0"))
    if not 0 < length <= SLOT_BYTES - _PREFIX.size:
        return None, True
    header = read_range(fd, ByteRange(offset + _PREFIX.size, length))
    if len(header) != length or xxhash.xxh3_64_intdigest(header) != expected:
        return None, True
    return header, False


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES
