"""One dump on disk: filled row by row, made visible whole by a hard link, or not at all."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import xxhash
from statetap_contract import HEADER_BYTES, Receipt, decode_header, dump_name, layout_of
from statetap_contract.dump import encode_header
from statetap_contract.regular_file import open_regular

from statetap_patch.space import take_over


class DumpFile:
    """A dump that is being written by a writer thread. Rows arrive in order."""

    def __init__(self, folder: Path, draft: Receipt) -> None:
        """Takes over the space that was reserved for the attempt.

        Args:
            folder: where dumps are published.
            draft: the receipt, but for ``states_xxh3``.

        Raises:
            OSError: the reservation is gone, or of another size.
            ValueError: something else was put in its place.
        """
        self._folder = folder
        self._draft = draft
        self._layout = layout_of(draft)
        self._checksum = xxhash.xxh3_64()
        self._temporary = take_over(folder, draft.attempt)
        self._fd: int | None = None
        try:
            self._fd = open_regular(self._temporary, os.O_WRONLY)
        except (OSError, ValueError):  # too many open files, for one
            self._temporary.unlink(missing_ok=True)
            raise
        if (size := os.fstat(self._fd).st_size) != self._layout.file_bytes:
            self.discard()
            raise OSError(errno.EINVAL, f"{size} bytes are reserved, not {self._layout.file_bytes}")

    def write(self, first_row: int, token_ids: bytes, states: memoryview) -> None:
        """Writes consecutive rows and the int32 ids that the model was fed in them."""
        self._checksum.update(states)
        layout = self._layout
        self._pwrite(states, layout.states_offset + first_row * layout.row_bytes)
        self._pwrite(memoryview(token_ids), layout.token_ids_offset + 4 * first_row)

    def publish(self) -> Receipt:
        """Writes the header and gives the dump its name. Returns the final receipt.

        A dump of the same key and prompt that is already there wins, and its receipt is returned.

        Raises:
            FileExistsError: the key is taken by another prompt's dump.
        """
        receipt = replace(self._draft, states_xxh3=self._checksum.hexdigest())
        self._pwrite(memoryview(encode_header(receipt)), 0)
        path = self._folder / dump_name(receipt.key)
        try:
            os.link(self._temporary, path)  # atomic, and never replaces a published dump
        except FileExistsError:
            other = read_receipt(self._folder, receipt.key)
            if other is None:
                # Not a dump, or one of another version: it would block its key for ever.
                self._temporary.replace(path)
                return receipt
            if other.token_digest != receipt.token_digest:
                raise
            return other
        finally:
            self.discard()
        return receipt

    def discard(self) -> None:
        """Removes the temporary name; a published dump keeps its own."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
            self._temporary.unlink(missing_ok=True)

    def __del__(self) -> None:
        # A capture whose request vanishes drops its last reference here, and its space with it.
        if getattr(self, "_fd", None) is not None:
            self.discard()

    def _pwrite(self, data: memoryview, offset: int) -> None:
        if self._fd is None:
            raise ValueError("the dump was already published or discarded")
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written


def read_receipt(folder: Path, key: str) -> Receipt | None:
    """The receipt of a published dump; None when there is none, or none that can be read."""
    try:
        with os.fdopen(open_regular(folder / dump_name(key), os.O_RDONLY), "rb") as stream:
            return decode_header(stream.read(HEADER_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):  # the last from brackets, deep enough
        return None
