"""Files of JSON lines that survive a power loss: written by one process, followed by others."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from statetap_store.file_bytes import make_folders, sync_folder


def append_line(path: Path, record: Mapping[str, object]) -> None:
    """Adds one line to a file that only this process writes; returns when it is durable.

    The file is made, and its folder in a folder that is there.

    Raises:
        OSError: it cannot be written.
    """
    make_folders(path.parent, 2)
    line = json.dumps(record, ensure_ascii=False) + "\n"
    fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    try:
        # A line that a crash cut short is ended, so that it spoils no other.
        if os.fstat(fd).st_size and _last_byte(path) != b"\n":
            line = "\n" + line
        data = line.encode(errors="backslashreplace")
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path.parent)


class LineTail:
    """Follows one growing file. A file that did not change costs one ``stat``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int | None = None
        #: Bytes up to the end of the last whole line that was read.
        self._num_read = 0
        self._num_bytes = 0

    def read_new(self) -> list[object] | None:
        """What the lines say that are new since the last call; None when the file was replaced.

        Also when it was cut. Lines that are no JSON, as a crash leaves them, are passed over.

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
        records: list[object] = []
        for line in whole.splitlines():
            try:
                records.append(json.loads(line))
            except (ValueError, RecursionError):
                continue
        return records


def _last_byte(path: Path) -> bytes:
    with path.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1)
