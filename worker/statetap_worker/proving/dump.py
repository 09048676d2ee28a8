"""A dump, mapped into memory: nothing is copied until it is written to a shard."""

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from statetap_contract import (
    HEADER_BYTES,
    MismatchError,
    Receipt,
    TransientError,
    decode_header,
    dump_name,
    encode_header,
    layout_of,
)
from statetap_contract.regular_file import open_regular
from statetap_store import storage_dtype


@dataclass(frozen=True, slots=True)
class Dump:
    """The content of one dump. The arrays are views of the file and keep it mapped."""

    path: Path
    #: The file's first ``HEADER_BYTES`` bytes.
    header: bytes
    #: [num_tokens] int32: what the model was fed in these rows.
    token_ids: npt.NDArray[np.int32]
    #: [num_tokens, row_width], see ``statetap_store.storage_dtype``.
    states: npt.NDArray[np.generic]

    def receipt(self) -> Receipt:
        """The receipt in the file's own header.

        Raises:
            MismatchError: kind ``dump-unreadable``.
        """
        return _receipt_in(self.header, self.path)

    def is_of(self, receipt: Receipt) -> bool:
        """Whether the file's own header holds this receipt.

        Raises:
            MismatchError: kind ``dump-unreadable``.
        """
        with suppress(ValueError):  # what fits no header stands in none
            # A receipt has one header, and making it takes a third of the time of reading it.
            if self.header == encode_header(receipt):
                return True
        return self.receipt() == receipt


def map_dump(folder: Path, receipt: Receipt) -> Dump:
    """Maps the dump that a receipt speaks of, by the receipt alone: the header is not looked at.

    Raises:
        TransientError: kind ``dump-missing``.
        MismatchError: kinds ``dump-cut`` and ``dump-unreadable``.
    """
    path = folder / dump_name(receipt.key)
    try:
        mapped = _mapped(path)
    except FileNotFoundError as error:
        raise TransientError(
            "dump-missing",
            f"host {receipt.host} published {receipt.path}, but there is no {path}; are server "
            "and worker given the same folder?",
        ) from error
    return _view(path, mapped, receipt)


def map_file(path: Path) -> Dump:
    """Maps a file that has a dump's form, as its header says.

    Raises:
        OSError: it cannot be read.
        MismatchError: kinds ``dump-cut`` and ``dump-unreadable``.
    """
    mapped = _mapped(path)
    return _view(path, mapped, _receipt_in(mapped[:HEADER_BYTES], path))


def _mapped(path: Path) -> mmap.mmap:
    try:
        fd = open_regular(path, os.O_RDONLY)
    except ValueError as error:
        raise MismatchError("dump-unreadable", str(error)) from error
    try:
        if not os.fstat(fd).st_size:  # such a file cannot be mapped
            raise MismatchError("dump-cut", f"{path} is empty")
        return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(fd)


def _view(path: Path, mapped: mmap.mmap, receipt: Receipt) -> Dump:
    if receipt.num_tokens < 1 or receipt.row_width < 1:
        raise MismatchError("dump-unreadable", f"{path} would hold no rows")
    layout = layout_of(receipt)
    if len(mapped) != layout.file_bytes:
        raise MismatchError("dump-cut", f"{path} has {len(mapped)} bytes, not {layout.file_bytes}")
    states = np.frombuffer(
        mapped,
        storage_dtype(layout.dtype),
        layout.num_tokens * layout.row_width,
        layout.states_offset,
    ).reshape(layout.num_tokens, layout.row_width)
    token_ids = np.frombuffer(mapped, "<i4", layout.num_tokens, layout.token_ids_offset)
    return Dump(path, mapped[:HEADER_BYTES], token_ids, states)


def _receipt_in(header: bytes, path: Path) -> Receipt:
    try:
        return decode_header(header)
    except (ValueError, RecursionError) as error:  # the latter from brackets, deep enough
        raise MismatchError("dump-unreadable", f"{path}: {error}") from error


def delete_dump(folder: Path, key: str) -> None:
    """Gives the dump's shared memory back; one that is gone already is no error."""
    (folder / dump_name(key)).unlink(missing_ok=True)
