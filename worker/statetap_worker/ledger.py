"""The dead-letter ledger: samples given up on, as JSON lines that survive a power loss."""

import json
import os
from pathlib import Path

from statetap_contract import DeadLetter


class Ledger:
    """Appends to one file, which one process owns: ``<run>/ledger/<process>.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, letter: DeadLetter) -> None:
        """Writes one line and returns when it is durable.

        Raises:
            OSError: the ledger cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(letter.to_json(), ensure_ascii=False) + "\n"
        fd = os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            # A line that a crash cut short is ended, so that it spoils no other.
            if os.fstat(fd).st_size and _last_byte(self._path) != b"\n":
                line = "\n" + line
            os.write(fd, line.encode())
            os.fsync(fd)
        finally:
            os.close(fd)


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1)
