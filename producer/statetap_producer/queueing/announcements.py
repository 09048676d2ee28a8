"""Announcements: samples and dead letters on disks that only their workers can see."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, cast

from statetap_contract import DeadLetter
from statetap_contract.announcement import (
    PLACES_KEY,
    Announcement,
    announced_key,
    announced_letters_key,
    announced_samples_key,
    unpack_letters,
    unpack_samples,
)
from statetap_store.layout import token_bytes

from statetap_producer.queueing.broker import Broker
from statetap_producer.run.known_workers import KnownWorker, KnownWorkers
from statetap_producer.run.run_folder import RunFolder

#: Batches that are read from Redis in one go; the largest have 1.3 MB.
_READ_BATCHES: Final = 16

#: Looks until lists that vanish while they are read, as when all is announced anew, count as gone.
_NUM_TRIES: Final = 3

#: Hidden samples by which a worker is remembered.
_NUM_HIDDEN: Final = 32


@dataclass(frozen=True, slots=True)
class AnnouncedWorker:
    """A worker that has a record in Redis now."""

    name: str
    host: str
    num_samples: int
    #: Seconds since it wrote the record. One that is switched off has samples all the same.
    heard_s_ago: int


@dataclass(slots=True)
class _Heard:
    """How far one place's announcement was read."""

    epoch: str
    num_sample_batches: int = 0
    num_letter_batches: int = 0
    #: Tokens of samples that were not seen in the run's own files, in the order of the
    #: announcement. Of places that hold the same sample one has it here.
    hidden: dict[str, int] = field(default_factory=dict)


class Announcements:
    """What the workers of a run say they hold; ``refresh`` reads only what is new.

    Args:
        run: a planned run.
        broker: where workers announce.

    Raises:
        MissingError, UsageError: as ``RunFolder.read_record`` and ``KnownWorkers``.
    """

    def __init__(self, run: RunFolder, broker: Broker) -> None:
        self._run = run.name
        self._broker = broker
        self._token_bytes = token_bytes(run.read_record().inputs.spec)
        self._known = KnownWorkers(run.path / "workers.json")
        #: Dead letters by sample key; a sample may have several.
        self.letters: dict[str, list[DeadLetter]] = {}
        self.workers: list[AnnouncedWorker] = []
        #: Workers that hold samples which nobody else can see, and of which Redis knows nothing.
        self.silent: list[str] = []
        #: Tokens of samples that were not seen in the run's own files, each key once.
        self.num_tokens = 0
        self._heard: dict[str, _Heard] = {}
        self._num_tokens_of: dict[str, int] = {}
        self._num_seen = 0

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of all announced samples; a view that changes with ``refresh``."""
        return self._num_tokens_of.keys()

    @property
    def num_bytes(self) -> int:
        """Bytes of states, ids and masks of the samples of ``num_tokens``."""
        return self.num_tokens * self._token_bytes

    def refresh(self, seen_in_files: AbstractSet[str]) -> None:
        """Catches up with Redis.

        Args:
            seen_in_files: keys of the samples in the run's own shards, looked at just before.

        Raises:
            MissingError: kinds of ``Broker``: Redis cannot be used.
        """
        if len(seen_in_files) < self._num_seen:
            self._forget()
        elif len(seen_in_files) > self._num_seen:
            for heard in self._heard.values():
                heard.hidden = _left_of(heard.hidden, seen_in_files)
        self._num_seen = len(seen_in_files)
        with self._broker.asking():
            now_s, told = self._read(seen_in_files)
        self._known.update(
            {place: self._worker_at(place, told[place], seen_in_files) for place in told}
        )
        self.workers = [
            AnnouncedWorker(
                record.worker, record.host, record.num_samples, max(0, now_s - record.time_s)
            )
            for record in told.values()
        ]
        self.silent = sorted(
            worker.address
            for place, worker in self._known.by_place.items()
            if place not in told and worker.holds_what_is_not_in(seen_in_files)
        )
        self.num_tokens = sum(sum(heard.hidden.values()) for heard in self._heard.values())

    def _read(self, seen_in_files: AbstractSet[str]) -> tuple[int, dict[str, Announcement]]:
        """The time by the clock of Redis, and the records of which everything was read."""
        for _ in range(_NUM_TRIES):
            now_s, records = self._read_records()
            if self._is_taken_back(records):
                self._forget()
            told = {
                place: record
                for place, record in records.items()
                if self._catch_up(place, record, seen_in_files)
            }
            if len(told) == len(records):
                break
        return now_s, told

    def _read_records(self) -> tuple[int, dict[str, Announcement]]:
        """The time by the clock of Redis, and what each place says of the run."""
        client = self._broker.client
        now_s, _ = client.time()
        members = cast(set[bytes], client.smembers(PLACES_KEY))
        places = sorted(member.decode(errors="replace") for member in members)
        with client.pipeline(transaction=False) as pipeline:
            for place in places:
                pipeline.hget(announced_key(place), self._run)
            answers = pipeline.execute()
        records = {}
        for place, answer in zip(places, answers, strict=True):
            # A record that cannot be read is another version's: its worker counts as silent.
            if answer is not None and (record := _decoded(answer)) is not None:
                records[place] = record
        return now_s, records

    def _is_taken_back(self, records: Mapping[str, Announcement]) -> bool:
        return any(
            place not in records or records[place].epoch != heard.epoch
            for place, heard in self._heard.items()
        )

    def _forget(self) -> None:
        self._heard = {}
        self._num_tokens_of = {}
        self.letters = {}

    def _catch_up(self, place: str, record: Announcement, seen_in_files: AbstractSet[str]) -> bool:
        """Reads what a record promises; False where it is not there or cannot be read."""
        try:
            return self._read_on(place, record, seen_in_files)
        except ValueError:
            return False

    def _read_on(self, place: str, record: Announcement, seen_in_files: AbstractSet[str]) -> bool:
        heard = self._heard.setdefault(place, _Heard(record.epoch))
        names = place, self._run, record.epoch
        while (start := heard.num_sample_batches) < record.num_sample_batches:
            batches = self._range(announced_samples_key(*names), start, record.num_sample_batches)
            if not batches:
                return False
            for batch in batches:
                samples = dict(unpack_samples(batch))
                heard.hidden |= _left_of(
                    _left_of(samples, seen_in_files), self._num_tokens_of.keys()
                )
                self._num_tokens_of |= samples
            heard.num_sample_batches += len(batches)
        while (start := heard.num_letter_batches) < record.num_letter_batches:
            batches = self._range(announced_letters_key(*names), start, record.num_letter_batches)
            if not batches:
                return False
            for letter in (letter for batch in batches for letter in unpack_letters(batch)):
                self.letters.setdefault(letter.key, []).append(letter)
            heard.num_letter_batches += len(batches)
        return True

    def _range(self, key: str, start: int, end: int) -> list[bytes]:
        last = min(end, start + _READ_BATCHES) - 1
        return cast(list[bytes], self._broker.client.lrange(key, start, last))

    def _worker_at(
        self, place: str, record: Announcement, seen_in_files: AbstractSet[str]
    ) -> KnownWorker:
        """The worker as it is to be remembered."""
        heard = self._heard[place]
        known = self._known.by_place.get(place)
        if known is not None and known.holds_what_is_not_in(seen_in_files):
            # It says as much as others would, and need not be written again.
            hidden = known.hidden
        else:
            step = 1 + len(heard.hidden) // _NUM_HIDDEN
            hidden = tuple(islice(heard.hidden, 0, None, step))
        return KnownWorker(place, record.worker, record.host, record.folder, hidden)


def _left_of(samples: dict[str, int], known: AbstractSet[str]) -> dict[str, int]:
    """Those that are not known, in their order."""
    if known.isdisjoint(samples):
        return samples
    return {key: num_tokens for key, num_tokens in samples.items() if key not in known}


def _decoded(data: bytes) -> Announcement | None:
    try:
        return Announcement.decode(data)
    except ValueError:
        return None
