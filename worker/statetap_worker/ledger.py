"""The dead-letter ledger: samples given up on, as JSON lines that survive a power loss."""

import json
import logging
import os
from datetime import UTC, datetime
from pathlib import Path

from statetap_contract import DeadLetter, StatetapError
from statetap_store.file_bytes import make_folders, sync_folder

from statetap_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class Ledger:
    """Appends to one file, which one process owns: ``<run>/ledger/<process>.jsonl``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, letter: DeadLetter) -> None:
        """Writes one line and returns when it is durable.

        Raises:
            OSError: the ledger cannot be written.
        """
        make_folders(self._path.parent, 2)
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
        sync_folder(self._path.parent)


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1)


def bury(
    settings: WorkerSettings,
    owner: str,
    run: str,
    key: str,
    error: StatetapError,
    attempts: int,
) -> None:
    """Writes a sample to the run's ledger.

    Args:
        settings: where runs lie, and which server was asked.
        owner: the process that writes, which no other may be named like.
        run: name of the run.
        key: sample key.
        error: why it is given up.
        attempts: times the sample was tried.

    Raises:
        OSError: the ledger cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    letter = DeadLetter(key, error.kind, error.message, attempts, settings.server_url, now)
    Ledger(settings.runs / run / "ledger" / f"{owner}.jsonl").append(letter)
    logger.error("dead letter key=%s kind=%s %s", key, error.kind, error.message)
