"""LedgerTail: the dead letters of one growing ledger, each given once."""

import json
import os
from pathlib import Path

from statetap_contract import DeadLetter


class LedgerTail:
    """Follows one file of the ledger. A file that did not change costs one ``stat``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        #: Bytes up to the end of the last whole line that was read.
        self._num_read = 0
        self._num_bytes = 0

    def read_new(self) -> list[DeadLetter] | None:
        """Letters that are new since the last call; None when the file was replaced or cut.

        Lines that are no dead letters, as a crash leaves them, are passed over.

        Raises:
            OSError: the file cannot be read.
        """
        status = self._path.stat()
        if self._inode not in (None, status.st_ino) or status.st_size < self._num_bytes:
            return None
        is_same = self._inode is not None and status.st_size == self._num_bytes
        self._inode, self._num_bytes = status.st_ino, status.st_size
        if is_same:
            return []
        with self._path.open("rb") as stream:
            stream.seek(self._num_read, os.SEEK_SET)
            text = stream.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._num_read += len(whole)
        return [letter for line in whole.splitlines() if (letter := _letter_in(line)) is not None]


def _letter_in(line: bytes) -> DeadLetter | None:
    try:
        return DeadLetter.from_json(json.loads(line))
    except (ValueError, RecursionError):
        return None
