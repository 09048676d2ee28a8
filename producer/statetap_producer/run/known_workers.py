"""Workers that were heard of once: ``<run>/workers.json``.

Redis may forget them, and then it must not look as if their samples had never been.
"""

import json
from collections.abc import Callable, Mapping
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
    #: Keys of some samples and dead letters that it announced and that were not seen in the run's
    #: own files.
    hidden: tuple[str, ...]
    #: Whether it was at work for the run's queue and had announced nothing of the run yet.
    is_expected: bool
    #: Whether it was given up: nobody waits for it until it speaks again.
    is_given_up: bool = False
    #: Epoch of the announcement that went with it, empty where there was none.
    given_up_epoch: str = ""

    @property
    def address(self) -> str:
        """How people are told of it."""
        return f"{self.name}@{self.host}:{self.folder}"

    def holds_what_is_not(self, is_settled: Callable[[str], bool]) -> bool:
        """Whether it holds something that is known from nowhere else.

        Workers go on while files are looked at, so that a sample may be announced before it is
        seen. It is found in the files later.
        """
        return not all(map(is_settled, self.hidden))

    @classmethod
    def from_json(cls, value: object) -> Self:
        fields = FieldReader(value, "a worker")
        worker = cls(
            place=fields.take("place", str),
            name=fields.take("name", str),
            host=fields.take("host", str),
            folder=fields.take("folder", str),
            hidden=tuple(fields.take("hidden", list)),
            is_expected=fields.take("is_expected", bool),
            is_given_up=fields.take("is_given_up", bool),
            given_up_epoch=fields.take("given_up_epoch", str),
        )
        fields.finish()
        if not all(isinstance(key, str) for key in worker.hidden):
            raise ValueError("a worker: 'hidden' is not a list of keys")
        return worker


class KnownWorkers:
    """The workers of one run by their place.

    Raises:
        UsageError: kind ``workers-unreadable``: the file is not one of these.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._mark, self._workers = _read(file)

    @property
    def by_place(self) -> Mapping[str, KnownWorker]:
        return self._workers

    @property
    def mark(self) -> str:
        """What was left in Redis when prompts were queued last; empty before the first time."""
        return self._mark

    def update(self, workers: Mapping[str, KnownWorker]) -> None:
        """Keeps what was heard just now; durably, where the folder can be written to."""
        if workers.items() <= self._workers.items():
            return
        self._workers |= workers
        # Who may only look at a run has nothing to remember; on a full disk the next call does it.
        with suppress(OSError):
            self._write()

    def give_up(self, workers: Mapping[str, KnownWorker]) -> None:
        """Keeps, durably, that nobody waits for these. Raises OSError when that cannot be done."""
        self._workers |= workers
        self._write()

    def set_mark(self, mark: str) -> None:
        """Keeps what is about to be left in Redis, as ``update`` does."""
        self._mark = mark
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        records = [asdict(self._workers[place]) for place in sorted(self._workers)]
        text = json.dumps({"mark": self._mark, "workers": records}, indent=2) + "\n"
        with durable_file(self._file) as temporary:
            temporary.write_text(text)


def _read(file: Path) -> tuple[str, dict[str, KnownWorker]]:
    try:
        fields = FieldReader(json.loads(file.read_bytes()), "the list")
        mark, records = fields.take("mark", str), fields.take("workers", list)
        fields.finish()
        return mark, {worker.place: worker for worker in map(KnownWorker.from_json, records)}
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            "workers-unreadable",
            f"{file} is not a list of workers ({error}); move it away while all workers run, which "
            "are then known again",
        ) from error
