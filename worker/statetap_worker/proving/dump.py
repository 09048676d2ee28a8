"""A dump, mapped into memory: nothing is copied until it is written to a shard."""

import mmap
import os
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
    layout_of,
)
from statetap_store import storage_dtype


@dataclass(frozen=True, slots=True)
class Dump:
    """The content of one dump. The arrays are views of the file and keep it mapped."""

    #: The receipt in the file's own header.
    receipt: Receipt
    #: [num_tokens] int32: what the model was fed in these rows.
    token_ids: npt.NDArray[np.int32]
    #: [num_tokens, row_width], see ``statetap_store.storage_dtype``.
    states: npt.NDArray[np.generic]


def map_dump(folder: Path, receipt: Receipt) -> Dump:
    """Maps the dump that a receipt speaks of.

    Raises:
        TransientError: kind ``dump-missing``.
        MismatchError: kinds ``dump-cut`` and ``dump-unreadable``.
    """
    path = folder / dump_name(receipt.key)
    try:
        return map_file(path)
    except FileNotFoundError as error:
        raise TransientError(
            "dump-missing",
            f"host {receipt.host} published {receipt.path}, but there is no {path}; are server "
            "and worker given the same folder?",
        ) from error


def map_file(path: Path) -> Dump:
    """Maps a file that has a dump's form.

    Raises:
        OSError: it cannot be read.
        MismatchError: kinds ``dump-cut`` and ``dump-unreadable``.
    """
    with path.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:  # such a file cannot be mapped
            raise MismatchError("dump-cut", f"{path} is empty")
        return _read(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), path)


def _read(mapped: mmap.mmap, path: Path) -> Dump:
    try:
        receipt = decode_header(mapped[:HEADER_BYTES])
        if receipt.num_tokens < 1 or receipt.row_width < 1:
            raise ValueError("the dump's header speaks of no rows")
    except (ValueError, RecursionError) as error:  # the latter from brackets, deep enough
        raise MismatchError("dump-unreadable", f"{path}: {error}") from error
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
    return Dump(receipt, token_ids, states)


def delete_dump(folder: Path, key: str) -> None:
    """Gives the dump's shared memory back; one that is gone already is no error."""
    (folder / dump_name(key)).unlink(missing_ok=True)
