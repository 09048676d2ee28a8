"""Settled prompts: samples that are stored, and dead letters that count."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from statetap_contract import DeadLetter, MissingError
from statetap_store import RunScanner

from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.give_up import give_up
from statetap_producer.queueing.hear_workers import hear_workers
from statetap_producer.run.ledger import LedgerReader
from statetap_producer.run.pardons import Pardon, Pardons
from statetap_producer.run.run_folder import RunFolder


class Settled:
    """What became of prompts, by sample key: from shards, ledgers and pardons in the run folder.

    Given a broker, also from what workers announce of disks that cannot be seen from here. Needs no
    plan, and holds nothing of prompts that are pending.

    Raises:
        MissingError, CheckError: what reading shards, ledger, pardons and announcements raises;
            also by ``refresh``.
    """

    def __init__(self, run: RunFolder, broker: Broker | None = None) -> None:
        self._run = run
        self.scanner = RunScanner(run.shards)
        self._broker = broker
        self.announcements = Announcements(run, broker) if broker else None
        self._late: frozenset[str] = frozenset()
        self._ledger = LedgerReader(run.ledger)
        self.pardons = Pardons(run.path / "reruns.jsonl")
        self._pardoned: Mapping[str, Pardon] = {}
        self._letters: dict[str, list[DeadLetter]] = {}
        #: The last letter of each key that has more of them than were pardoned.
        self.letters: dict[str, DeadLetter] = {}
        self.refresh()

    def refresh(self) -> None:
        """Looks again."""
        # The ledger first: a sample that is stored in between is found stored, not pending.
        self._ledger.refresh()
        self.scanner.refresh()
        if self.announcements is not None:
            self.announcements.refresh(self.scanner.keys, self._ledger.letters.keys())
        self._pardoned = self.pardons.read()
        self._letters = dict(self._all_letters())
        self.letters = {
            key: letters[-1]
            for key, letters in self._letters.items()
            if len(letters) > self._pardon(key).num_letters
        }

    def wait_for_announcements(self) -> None:
        """Waits until all is announced that was acknowledged before now, and looks again.

        Where no worker may hold samples that cannot be seen from here, there is nothing to wait
        for. See ``hear_workers``.
        """
        if self._broker is not None and self.announcements is not None:
            self._late = hear_workers(self.announcements, self._broker, self._run.name)
            self.refresh()

    def give_up(self, workers: Collection[str]) -> None:
        """Gives up workers by name, and looks again. See ``give_up``."""
        if self.announcements is not None and workers:
            give_up(self.announcements, workers)
            self.refresh()

    def is_stored(self, key: str) -> bool:
        return key in self.scanner.keys or (
            self.announcements is not None and key in self.announcements.keys
        )

    def is_dead(self, key: str) -> bool:
        """Whether it was given up; a stored sample is not dead, whatever its letters say."""
        return key in self.letters and not self.is_stored(key)

    def attempt(self, key: str) -> int:
        """The number that a job of this prompt bears when it is given out now, from 1."""
        return 1 + self._pardon(key).num_reruns

    def num_letters(self, key: str) -> int:
        """All letters of a key, pardoned ones included."""
        return len(self._letters[key])

    @property
    def silent_workers(self) -> list[str]:
        """Workers that may hold samples of which nothing is known here."""
        silent = self.announcements.silent if self.announcements else ()
        return sorted(self._late.union(silent))

    def refuse_silent_workers(self) -> None:
        """Raises MissingError, kind ``worker-silent``, when there are any."""
        if silent := self.silent_workers:
            raise MissingError(
                "worker-silent",
                f"nothing was heard from {', '.join(silent)}, and what is stored there would be "
                f"extracted again; start it, or run: statetap reconcile --run {self._run.path} "
                + " ".join(f"--without {worker}" for worker in silent),
            )

    def _pardon(self, key: str) -> Pardon:
        return self._pardoned.get(key, Pardon())

    def _all_letters(self) -> Iterator[tuple[str, list[DeadLetter]]]:
        """Letters by key. One that is both in a file and announced is one letter."""
        in_files = self._ledger.letters
        announced = self.announcements.letters if self.announcements else {}
        for key in in_files.keys() | announced.keys():
            if key not in announced:
                yield key, in_files[key]
                continue
            both = Counter(in_files.get(key, [])) | Counter(announced[key])
            yield key, sorted(both.elements(), key=lambda letter: letter.time)
