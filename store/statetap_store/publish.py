"""Giving a new shard its name: it appears whole and durable, or not at all."""

import os
from collections.abc import Callable
from pathlib import Path

from statetap_contract import MissingError, StopError

from statetap_store.disk_errors import stop_for
from statetap_store.file_bytes import make_folders, sync_folder, write_at
from statetap_store.header import ShardHeader
from statetap_store.header_copies import OPEN_SLOT, SEALED_SLOT, write_copy


def publish_shard(
    path: Path, header: ShardHeader, fill: Callable[[int], None] | None = None
) -> None:
    """Makes a shard under a temporary name and links it to ``path``.

    The caller holds the shard's lock, so the temporary name is its own.

    Args:
        path: the new shard.
        header: what it says of itself; a sealed one stands in both copies.
        fill: writes what the shard is to hold to the descriptor it gets. Without it the shard is
            empty. What it raises leaves no file.

    Raises:
        StopError: kind ``shard-exists``, ``disk-full``, ``not-writable`` or ``shard-broken``.
    """
    temporary = _temporary_name(path)
    try:
        remove_leftover(path)
        try:
            _write_whole(temporary, header, fill)
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except FileExistsError as error:
        raise StopError(
            "shard-exists", f"{path} exists already: open it instead of creating it"
        ) from error
    except OSError as error:
        raise stop_for(error, path, "make a new shard") from error


def remove_leftover(path: Path) -> None:
    """Removes the temporary name that a crash may have left, perhaps beside the final one.

    It must go before it is used again: it may be a second name of the shard itself. The caller
    holds the shard's lock.
    """
    _temporary_name(path).unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Makes a folder for shards, durably, if there is none.

    Raises:
        MissingError: kind ``folder-missing``, its parent does not exist either.
        StopError: kind ``disk-full``, ``not-writable`` or ``shard-broken``.
    """
    try:
        make_folders(folder, 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError(
            "folder-missing", f"there is no folder {folder.parent}: make the run's folder first"
        ) from error
    except OSError as error:
        raise stop_for(error, folder, "make a folder") from error


def _temporary_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def _write_whole(path: Path, header: ShardHeader, fill: Callable[[int], None] | None) -> None:
    encoded = header.encode()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        write_at(fd, encoded, 0)
        for slot in (OPEN_SLOT, SEALED_SLOT) if header.is_sealed else (OPEN_SLOT,):
            write_copy(fd, slot, encoded)
        os.ftruncate(fd, header.layout.file_bytes)
        if fill is not None:
            fill(fd)
        os.fsync(fd)
    finally:
        os.close(fd)
