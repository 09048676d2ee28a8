"""Names of shards: which files of a folder are shards, and whose."""

import re
from pathlib import Path
from typing import Final

from statetap_contract import MissingError

SUFFIX: Final = ".h5"

_WRITER_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_writer_name(name: str) -> bool:
    """Whether a name can be part of a shard's name."""
    return _WRITER_FORM.fullmatch(name) is not None


def shard_name(writer_name: str, sequence: int) -> str:
    """Name of a writer's shard number ``sequence``, from 1."""
    return f"{writer_name}-{sequence:05d}{SUFFIX}"


def shard_sequence(name: str, writer_name: str) -> int | None:
    """The number of a writer's shard, None for the name of anything else."""
    match = re.fullmatch(rf"{re.escape(writer_name)}-(\d{{5}}){re.escape(SUFFIX)}", name)
    return int(match[1]) if match else None


def writer_of(name: str) -> str:
    """The writer that gave a shard its name; for any other name, the name without its suffix."""
    match = re.fullmatch(rf"({_WRITER_FORM.pattern})-\d{{5}}{re.escape(SUFFIX)}", name)
    return match[1] if match else name.removesuffix(SUFFIX)


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder by name; none if there is no such folder.

    Raises:
        MissingError: kind ``folder-unreachable``: the folder cannot be listed.
    """
    try:
        paths = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        # Path.glob would take a folder that it may not read for an empty one.
        raise MissingError(
            "folder-unreachable", f"cannot list {folder} ({error.strerror}): check its permissions"
        ) from error
    return sorted(path for path in paths if path.suffix == SUFFIX and not path.name.startswith("."))
