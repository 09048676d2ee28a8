"""A dataset: a file, a folder of files, or a name on the Hugging Face hub; row by row."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from statetap_contract import CheckError, RejectError

from statetap_producer.reading.data_file import DataFile
from statetap_producer.reading.data_folder import files_of_folder
from statetap_producer.reading.file_rows import DAMAGE, FileRows
from statetap_producer.reading.hub_dataset import HUB_PREFIX, files_of_hub


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of a dataset, and where it stands."""

    #: Path relative to the dataset's folder, with "/", or the file's own name.
    file: str
    #: From 1: the line in a file of lines, elsewhere the number of the row.
    line: int
    #: A line of JSON, not parsed yet; fields that came decoded; or why neither is to be had.
    raw: bytes | dict[str, Any] | RejectError


class Dataset:
    """Files that are digested, and read in a fixed order; none may change after ``open``."""

    def __init__(self, name: str, files: Sequence[DataFile]) -> None:
        self._files = files
        self.name = name
        self.num_bytes = sum(file.num_bytes for file in files)
        #: Bytes that ``rows`` has read so far; grows to ``num_bytes``.
        self.num_bytes_read = 0

    @classmethod
    def open(cls, source: str | Path) -> Self:
        """Finds the files of a dataset.

        Args:
            source: a file, a folder, or ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``.

        Raises:
            UsageError, MissingError, CheckError: what ``DataFile.find``, ``files_of_folder`` and
                ``files_of_hub`` raise.
        """
        if isinstance(source, str) and source.startswith(HUB_PREFIX):
            return cls(source, files_of_hub(source))
        path = Path(source)
        name = path.name or path.resolve().name
        files = files_of_folder(path) if path.is_dir() else [DataFile.find(path, name)]
        return cls(name, files)

    def digest(self) -> str:
        """32 hex digits over all bytes of all files, and over their names where there are several.

        Raises:
            MissingError: kind ``dataset-missing``.
            CheckError: kind ``dataset-changed`` or ``dataset-damaged``.
        """
        digest = hashlib.blake2b(digest_size=16)
        for file in self._files:
            # A file that was moved or renamed is the same dataset.
            if len(self._files) > 1:
                digest.update(f"{file.name}\0{file.num_bytes}\0".encode())
            file.check_unchanged()
            with file.open() as stream:
                try:
                    hashlib.file_digest(stream, lambda: digest)
                except OSError as error:
                    raise _damaged(file, 0, error) from error
            file.check_unchanged()
        return digest.hexdigest()

    def rows(self) -> Iterator[RawRow]:
        """Every row, those that are bad included; holds a few of them at a time.

        Raises:
            MissingError: kind ``dataset-missing``.
            UsageError: kinds ``dataset-utf16``, ``dataset-format``, ``columns-unknown``.
            CheckError: kind ``dataset-changed``; or ``dataset-damaged``, where a file cannot be
                read to its end, because half a dataset must not pass for a whole one.
        """
        num_bytes_before = self.num_bytes_read = 0
        for file in self._files:
            file.check_unchanged()
            rows = FileRows(file)
            line = 0
            try:
                for line, raw in rows:
                    self.num_bytes_read = max(
                        self.num_bytes_read,
                        num_bytes_before + min(rows.num_bytes_read, file.num_bytes),
                    )
                    yield RawRow(file.name, line, raw)
            except DAMAGE as error:
                file.check_unchanged()
                raise _damaged(file, line, error) from error
            file.check_unchanged()
            num_bytes_before += file.num_bytes
            self.num_bytes_read = num_bytes_before


def _damaged(file: DataFile, line: int, error: BaseException) -> CheckError:
    where = f" beyond row {line}" if line else ""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return CheckError(
        "dataset-damaged",
        f"{file.path} cannot be read{where}: {reason:.200}; get a whole copy of it",
    )
