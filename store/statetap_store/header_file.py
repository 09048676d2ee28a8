"""A shard's header region as a file in memory, for HDF5 to read and to write.

HDF5 parses and builds headers here instead of in the shard itself. So a header can be taken from
its proven copy, opening a shard takes no HDF5 lock, and no file is ever half-built on disk.
"""

import io
import os
from typing import TYPE_CHECKING, Final

from statetap_store.layout import ALIGNMENT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

#: A length beyond every shard's. A shard that is too short is recognised elsewhere, by a sentence.
ENDLESS: Final = 1 << 60


class HeaderFile(io.RawIOBase):
    """Holds the first ``ALIGNMENT`` bytes; what is written behind them is dropped, and zero."""

    def __init__(self, header: bytes = b"", length: int = 0) -> None:
        self._region = bytearray(header)
        self._length = length
        self._position = 0

    @property
    def length(self) -> int:
        """Length of the whole file, the dropped part included."""
        return self._length

    def header(self, num_bytes: int) -> bytes:
        """The region's first bytes."""
        return bytes(self._region[:num_bytes]).ljust(num_bytes, b"\0")

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        view = memoryview(buffer).cast("B")
        num_bytes = min(len(view), max(0, self._length - self._position))
        kept = self._region[self._position : self._position + num_bytes]
        view[:num_bytes] = bytes(kept).ljust(num_bytes, b"\0")
        self._position += num_bytes
        return num_bytes

    def write(self, data: "ReadableBuffer", /) -> int:
        view = memoryview(data).cast("B")
        kept = view[: max(0, ALIGNMENT - self._position)]
        if kept:
            self._region.extend(bytes(max(0, self._position - len(self._region))))
        self._region[self._position : self._position + len(kept)] = kept
        self._position += len(view)
        self._length = max(self._length, self._position)
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        self._length = self._position if size is None else size
        return self._length
