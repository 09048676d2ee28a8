"""The dead-letter ledger, as workers leave it: one file a worker process, one object a line."""

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from statetap_contract import CheckError, DeadLetter


class LedgerReader:
    """The dead letters of a run. A file that did not change is not read again.

    A line that is no JSON was cut short by a crash: it is no letter.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._identities: dict[Path, tuple[int, int, int]] = {}
        self._parts: dict[Path, list[DeadLetter]] = {}
        #: Letters by sample key, in the order of files and lines.
        self.letters: dict[str, list[DeadLetter]] = {}

    def refresh(self) -> None:
        """Looks at the ledger again.

        Raises:
            CheckError: kind ``ledger-damaged``: a whole line that is no dead letter.
        """
        files = sorted(self._folder.glob("*.jsonl"))
        identities = {file: _identity(file) for file in files}
        if identities == self._identities:
            return
        self._parts = {
            file: self._parts[file]
            if self._identities.get(file) == identity
            else list(_letters_in(file))
            for file, identity in identities.items()
        }
        self._identities = identities
        letters = defaultdict(list)
        for letter in chain.from_iterable(self._parts.values()):
            letters[letter.key].append(letter)
        self.letters = dict(letters)


def _identity(file: Path) -> tuple[int, int, int]:
    """Device, inode and size: a ledger only grows."""
    status = file.stat()
    return status.st_dev, status.st_ino, status.st_size


def _letters_in(file: Path) -> Iterator[DeadLetter]:
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        try:
            yield DeadLetter.from_json(value)
        except ValueError as error:
            raise CheckError(
                "ledger-damaged",
                f"{file}:{number} cannot be read: {error}; take the line out, its prompt then "
                "counts as pending",
            ) from error
