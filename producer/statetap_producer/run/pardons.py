"""Pardons: dead letters that ``rerun`` has set aside, in ``reruns.jsonl`` of the run folder.

One object a line: a sample key, and how many letters the ledgers held for it. A sample is dead when
the ledgers hold more than were pardoned. No clock takes part, so a status on another machine, a
wiped Redis and a ledger that is still being written all agree.
"""

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from statetap_contract import CheckError, MissingError
from statetap_contract.strict_json import FieldReader
from statetap_store.file_bytes import sync_folder


@dataclass(frozen=True, slots=True)
class Pardon:
    """What was set aside for one sample."""

    #: Dead letters that no longer count.
    num_letters: int = 0
    #: How often it was pardoned.
    num_reruns: int = 0


class Pardons:
    """The file; only the producer writes it, and only while it has the lease of the queue."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> defaultdict[str, Pardon]:
        """Pardons by sample key. A line that is no JSON was cut short by a crash, and counts not.

        Raises:
            CheckError: kind ``reruns-damaged``: a whole line that is no pardon.
        """
        found: defaultdict[str, Pardon] = defaultdict(Pardon)
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return found
        for number, line in enumerate(lines, 1):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            try:
                fields = FieldReader(value, "the pardon")
                key, num_letters = fields.take("key", str), fields.take("num_letters", int)
                fields.finish()
            except ValueError as error:
                raise CheckError(
                    "reruns-damaged",
                    f"{self._path}:{number} cannot be read: {error}; take the line out, its "
                    "sample then counts as dead again",
                ) from error
            before = found[key]
            num_letters = max(num_letters, before.num_letters)
            found[key] = Pardon(num_letters, before.num_reruns + 1)
        return found

    def add(self, num_letters: Mapping[str, int]) -> None:
        """Pardons samples, given the letters of each; returns when that is durable.

        Raises:
            MissingError: kind ``reruns-unwritable``: a full or read-only disk; none is pardoned.
        """
        lines = "".join(
            json.dumps({"key": key, "num_letters": number}) + "\n"
            for key, number in num_letters.items()
        )
        try:
            with self._path.open("a+b", buffering=0) as stream:
                _append_lines(stream, lines.encode())
            sync_folder(self._path.parent)
        except OSError as error:
            raise MissingError(
                "reruns-unwritable",
                f"{self._path} cannot be written ({error.strerror or error}), and nothing was "
                "pardoned; make room on its disk, or make it writable, then run the command again",
            ) from error


def _append_lines(stream: FileIO, lines: bytes) -> None:
    """All of them, durably, or none."""
    num_bytes_before = stream.seek(0, os.SEEK_END)
    try:
        # A line that a crash cut short is ended, so that it spoils no other.
        if num_bytes_before:
            stream.seek(-1, os.SEEK_END)
            lines = (b"" if stream.read(1) == b"\n" else b"\n") + lines
        while lines:
            lines = lines[stream.write(lines) :]
        os.fsync(stream.fileno())
    except OSError:
        stream.truncate(num_bytes_before)
        raise
