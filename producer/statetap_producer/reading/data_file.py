"""A file of a dataset, as it was when it was found."""

import io
import stat
from dataclasses import dataclass
from os import stat_result
from pathlib import Path
from typing import Self

from statetap_contract import CheckError, MissingError

#: Bytes that are asked of the disk at a time.
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class DataFile:
    """A regular file, its name within the dataset, and what tells whether it was changed."""

    path: Path
    #: Relative to the dataset's folder, with "/"; the file's own name where that is the dataset.
    name: str
    num_bytes: int
    #: Changes with the content, as far as a file system tells.
    version: tuple[int, int, int]

    @classmethod
    def find(cls, path: Path, name: str) -> Self:
        """The file at a path.

        Raises:
            MissingError: kind ``dataset-missing``: not a file that can be read.
        """
        try:
            found = path.stat()
        except (OSError, ValueError) as error:
            raise missing(path, error) from error
        if not stat.S_ISREG(found.st_mode):
            raise MissingError(
                "dataset-missing",
                f"cannot read the dataset {path}: it is read twice, which only a file allows; "
                "save it to one",
            )
        # A name that is not UTF-8 must not keep a plan from being written.
        shown = name.encode(errors="surrogateescape").decode(errors="replace")
        return cls(path, shown, found.st_size, _version(found))

    def open(self) -> io.BufferedReader:
        """Raises MissingError, kind ``dataset-missing``."""
        try:
            return io.BufferedReader(io.FileIO(self.path), _CHUNK_BYTES)
        except OSError as error:
            raise missing(self.path, error) from error

    def check_unchanged(self) -> None:
        """Raises CheckError, kind ``dataset-changed``."""
        try:
            is_same = _version(self.path.stat()) == self.version
        except OSError:
            is_same = False
        if not is_same:
            raise CheckError(
                "dataset-changed",
                f"{self.path} was changed while it was read; start again when nothing writes to it",
            )


def missing(path: Path, error: Exception) -> MissingError:
    """What is said of a path that cannot be read."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return MissingError(
        "dataset-missing",
        f"cannot read the dataset {path}: {reason}; give a file or a folder of data files",
    )


def _version(found: stat_result) -> tuple[int, int, int]:
    return (found.st_ino, found.st_size, found.st_mtime_ns)
