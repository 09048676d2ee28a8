"""A dataset file, line by line."""

import codecs
import hashlib
from collections.abc import Iterator
from pathlib import Path

from statetap_contract import MissingError


class Dataset:
    """A JSONL file that is read once, in order, and digested on the way.

    A byte order mark, CRLF and blank lines are taken as they come; lines are counted as editors
    count them.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digest = hashlib.blake2b(digest_size=16)
        #: Bytes read so far.
        self.num_bytes_read = 0

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def digest(self) -> str:
        """32 hex digits over all bytes read so far."""
        return self._digest.hexdigest()

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of each line that is not blank.

        Raises:
            MissingError: kind ``dataset-missing``: not a file that can be read.
        """
        try:
            with self._path.open("rb") as stream:
                for number, line in enumerate(stream, 1):
                    self._digest.update(line)
                    self.num_bytes_read += len(line)
                    text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                    if text := text.strip():
                        yield number, text
        except OSError as error:
            raise MissingError(
                "dataset-missing",
                f"cannot read the dataset {self._path}: {error.strerror}; give a JSONL file",
            ) from error


def dataset_digest(path: Path) -> str:
    """Digest of a whole dataset. Raises MissingError as ``Dataset.lines`` does."""
    dataset = Dataset(path)
    for _ in dataset.lines():
        pass
    return dataset.digest
