"""Workers that were heard of once: ``<run>/workers.json``.

Redis may forget them, and then it must not look as if their samples had never been.
"""

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from statetap_contract import UsageError
from statetap_contract.strict_json import FieldReader

from statetap_producer.run.durable_file import durable_file


@dataclass(frozen=True, slots=True)
class KnownWorker:
    """The worker that speaks for a place: one folder of runs on one disk."""

    place: str
    name: str
    host: str
    folder: str
    #: Keys of some samples that it announced and that were not seen in the run's own files.
    hidden: tuple[str, ...]

    @property
    def address(self) -> str:
        """How people are told of it."""
        return f"{self.name}@{self.host}:{self.folder}"

    def holds_what_is_not_in(self, seen_in_files: AbstractSet[str]) -> bool:
        """Whether its silence matters.

        Workers go on while files are looked at, so that a sample may be announced before it is
        seen. It is found in the files later.
        """
        return any(key not in seen_in_files for key in self.hidden)

    @classmethod
    def from_json(cls, value: object) -> Self:
        fields = FieldReader(value, "a worker")
        hidden = fields.take("hidden", list)
        names = {name: fields.take(name, str) for name in ("place", "name", "host", "folder")}
        fields.finish()
        if not all(isinstance(key, str) for key in hidden):
            raise ValueError("a worker: 'hidden' is not a list of keys")
        return cls(hidden=tuple(hidden), **names)


class KnownWorkers:
    """The workers of one run by their place.

    Raises:
        UsageError: kind ``workers-unreadable``: the file is not one of these.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._workers = _read(file)

    @property
    def by_place(self) -> Mapping[str, KnownWorker]:
        return self._workers

    def update(self, workers: Mapping[str, KnownWorker]) -> None:
        """Keeps what was heard just now; durably, where the folder can be written to."""
        if workers.items() <= self._workers.items():
            return
        self._workers |= workers
        # Who may only look at a run has nothing to remember; on a full disk the next call does it.
        with suppress(OSError), durable_file(self._file) as temporary:
            records = [asdict(self._workers[place]) for place in sorted(self._workers)]
            temporary.write_text(json.dumps({"workers": records}, indent=2) + "\n")


def _read(file: Path) -> dict[str, KnownWorker]:
    try:
        records = json.loads(file.read_bytes())["workers"]
        workers = map(KnownWorker.from_json, records)
        return {worker.place: worker for worker in workers}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UsageError(
            "workers-unreadable",
            f"{file} is not a list of workers ({error}); move it away while all workers run, which "
            "are then known again",
        ) from error
