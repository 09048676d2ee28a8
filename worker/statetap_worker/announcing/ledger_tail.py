"""LedgerTail: the dead letters of one growing ledger, each given once."""

from pathlib import Path

from statetap_contract import DeadLetter

from statetap_worker.durable_lines import LineTail


class LedgerTail:
    """Follows one file of the ledger. A file that did not change costs one ``stat``."""

    def __init__(self, path: Path) -> None:
        self._lines = LineTail(path)

    def read_new(self) -> list[DeadLetter] | None:
        """Letters that are new since the last call; None when the file was replaced or cut.

        Lines that are no dead letters are passed over.

        Raises:
            OSError: the file cannot be read.
        """
        records = self._lines.read_new()
        if records is None:
            return None
        return [letter for record in records if (letter := _letter_in(record)) is not None]


def _letter_in(record: object) -> DeadLetter | None:
    try:
        return DeadLetter.from_json(record)
    except ValueError:
        return None
