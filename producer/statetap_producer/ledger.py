"""The dead-letter ledger, as workers leave it: one file a worker process, one object a line."""

import json
from collections.abc import Iterator
from pathlib import Path

from statetap_contract import CheckError, DeadLetter


def read_ledger(folder: Path) -> dict[str, DeadLetter]:
    """Dead letters by sample key; of several for one sample the last in its file counts.

    A line that is no JSON was cut short by a crash: its sample still counts as pending.

    Raises:
        CheckError: kind ``ledger-damaged``: a whole line that is no dead letter.
    """
    return {
        letter.key: letter
        for file in sorted(folder.glob("*.jsonl"))
        for letter in _letters_in(file)
    }


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
