"""InHand: what a worker process is at, written where its successor finds it.

A process that is killed can tell nobody which prompt it had. The note outlives it in the page
cache, which costs one ``pwrite`` and no sync: what a power loss takes is a count, no sample.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract import KEY_FORM, RUN_NAME_FORM, Job, StopError

#: A note has always the same length, so that one ``pwrite`` replaces the other.
_NOTE_BYTES: Final = 160
_NOTE: Final = re.compile(
    rf"({RUN_NAME_FORM.pattern}) ({KEY_FORM.pattern}) ([1-9][0-9]{{0,17}}) *\n"
)


@dataclass(frozen=True, slots=True)
class Left:
    """The sample that a killed process had in hand."""

    run: str
    key: str
    #: The job's attempt.
    attempt: int


class InHand:
    """The note of one process.

    Args:
        path: named after the process; its successor has the same, and no other.

    Raises:
        StopError: kind ``note-unwritable``.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
            # A disk that is full later has room for notes all the same.
            os.posix_fallocate(self._fd, 0, _NOTE_BYTES)
        except OSError as error:
            raise StopError("note-unwritable", f"cannot write {path}: {error.strerror}") from error
        #: What the process before this one was at when it died.
        self.left = _read(self._fd)

    @contextmanager
    def holding(self, job: Job) -> Iterator[None]:
        """Notes the job while the context lasts; the note stays only if the process is killed."""
        self._write(f"{job.run} {job.key} {job.attempt}")
        try:
            yield
        finally:
            self.clear()

    def clear(self) -> None:
        """Nothing is in hand."""
        self._write("")

    def close(self) -> None:
        """Lets go of the note."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, text: str) -> None:
        os.pwrite(self._fd, f"{text:{_NOTE_BYTES - 1}}\n".encode(), 0)


def _read(fd: int) -> Left | None:
    note = _NOTE.fullmatch(os.pread(fd, _NOTE_BYTES, 0).decode(errors="replace"))
    return Left(note[1], note[2], int(note[3])) if note else None
