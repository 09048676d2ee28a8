"""Announcements: samples and dead letters on disks that only their workers can see."""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final, cast

from statetap_contract import DeadLetter
from statetap_contract.announcement import (
    Announcement,
    announced_key,
    announced_letters_key,
    announced_samples_key,
    read_place,
    unpack_letters,
    unpack_samples,
)
from statetap_store.layout import token_bytes

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.places import Places, PlaceWord
from statetap_producer.run.known_workers import KnownWorker, KnownWorkers
from statetap_producer.run.run_folder import RunFolder

#: Batches that are read from Redis in one go; the largest have 1.3 MB.
_READ_BATCHES: Final = 16

#: Looks until lists that vanish while they are read, as when all is announced anew, count as gone.
_NUM_TRIES: Final = 3

#: Hidden samples, and hidden dead letters, by which a worker is remembered.
_NUM_HIDDEN: Final = 32


@dataclass(frozen=True, slots=True)
class AnnouncedWorker:
    """A worker that has a record in Redis now."""

    name: str
    host: str
    num_samples: int
    #: Seconds since it wrote the record. One that is switched off has samples all the same.
    heard_s_ago: int
    #: Room on its disk then.
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Unheard:
    """Workers of which it is not known what they hold now."""

    #: Those that are at work.
    alive: frozenset[KnownWorker]
    #: Those of which Redis knows nothing.
    absent: frozenset[KnownWorker]


@dataclass(slots=True)
class _Heard:
    """How far one place's announcement was read."""

    epoch: str
    num_sample_batches: int = 0
    num_letter_batches: int = 0
    #: Tokens of samples that were not seen in the run's own files, in the order of the
    #: announcement. Of places that hold the same sample one has it here.
    hidden: dict[str, int] = field(default_factory=dict)
    #: Keys of its dead letters, in their order.
    letter_keys: dict[str, None] = field(default_factory=dict)


class Announcements:
    """What the workers of a run say they hold; ``refresh`` reads only what is new.

    Args:
        run: a planned run.
        broker: where workers announce.

    Raises:
        MissingError, UsageError: as ``RunFolder.read_record`` and ``KnownWorkers``.
    """

    def __init__(self, run: RunFolder, broker: Broker) -> None:
        self._folder = run.path
        self._run = run.name
        self._broker = broker
        record = run.read_record()
        self._spec_digest = record.inputs.spec.digest
        self._num_planned = record.counts.num_planned
        self._token_bytes = token_bytes(record.inputs.spec)
        self.known = KnownWorkers(run.path / "workers.json")
        #: Dead letters by sample key; a sample may have several.
        self.letters: dict[str, list[DeadLetter]] = {}
        self.workers: list[AnnouncedWorker] = []
        #: Workers that hold samples which nobody else can see, and of which Redis knows nothing.
        self.silent: list[str] = []
        #: Tokens of samples that were not seen in the run's own files, each key once.
        self.num_tokens = 0
        self._heard: dict[str, _Heard] = {}
        self._num_tokens_of: dict[str, int] = {}
        self._seen_in_files: AbstractSet[str] = frozenset()
        self._dead_in_files: AbstractSet[str] = frozenset()
        self._num_seen = 0
        self._own_places: frozenset[str] = frozenset()
        self._places = Places(0, {})
        #: Those of which everything was read.
        self._told: Mapping[str, Announcement] = {}

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of all announced samples; a view that changes with ``refresh``."""
        return self._num_tokens_of.keys()

    @property
    def num_bytes(self) -> int:
        """Bytes of states, ids and masks of the samples of ``num_tokens``."""
        return self.num_tokens * self._token_bytes

    def refresh(
        self, seen_in_files: AbstractSet[str], dead_in_files: AbstractSet[str] = frozenset()
    ) -> None:
        """Catches up with Redis.

        Args:
            seen_in_files: keys of the samples in the run's own shards, looked at just before.
            dead_in_files: keys of the dead letters in the run's own ledger, likewise.

        Raises:
            MissingError: kinds of ``Broker``: Redis cannot be used.
        """
        if len(seen_in_files) < self._num_seen:
            self._forget()
        elif len(seen_in_files) > self._num_seen:
            for heard in self._heard.values():
                heard.hidden = _left_of(heard.hidden, seen_in_files)
        self._num_seen = len(seen_in_files)
        self._seen_in_files, self._dead_in_files = seen_in_files, dead_in_files
        self._own_places = frozenset(_places_of(self._folder))
        with self._broker.asking():
            self._told = self._read()
        self.known.update(dict(self._to_be_remembered()))
        now_s = self._places.time_us // 1_000_000
        self.workers = [
            AnnouncedWorker(
                record.worker,
                record.host,
                record.num_samples,
                max(0, now_s - record.time_s),
                record.free_bytes,
            )
            for record in self._told.values()
        ]
        self.num_tokens = sum(sum(heard.hidden.values()) for heard in self._heard.values())
        self.silent = sorted(
            worker.address
            for place, worker in self.known.by_place.items()
            if not self._is_understood(place) and self._is_missed(worker)
        )

    def unheard(self, since_us: int) -> Unheard:
        """Looks which workers may hold samples that were not announced at a time.

        Args:
            since_us: by the clock of Redis, before this is called.

        Raises:
            MissingError: kinds of ``Broker``.
        """
        self._places = self._look_at_places()
        absent = {
            worker
            for place, worker in self.known.by_place.items()
            if self._is_unknown_to_redis(place) and self._is_missed(worker)
        }
        alive = {
            _worker_of(place, word)
            for place, word in self._places.words.items()
            if word.is_alive and self._is_awaited(place, word)
            if not word.has_told(self._run, since_us)
        }
        return Unheard(frozenset(alive), frozenset(absent))

    def give_up(self, workers: Collection[KnownWorker]) -> None:
        """Forgets what workers have announced, here and in Redis, until they speak again.

        Raises:
            MissingError: kinds of ``Broker``.
            OSError: it cannot be kept that they were given up.
        """
        epochs = {place: record.epoch for place, record in self._told.items()}
        self.known.give_up(
            {
                worker.place: replace(
                    worker, is_given_up=True, given_up_epoch=epochs.get(worker.place, "")
                )
                for worker in workers
            }
        )
        with self._broker.asking(), self._broker.client.pipeline() as pipeline:
            for place in (worker.place for worker in workers):
                pipeline.hdel(announced_key(place), self._run)
                if place in epochs:
                    names = place, self._run, epochs[place]
                    pipeline.delete(announced_samples_key(*names), announced_letters_key(*names))
            pipeline.execute()

    def all_workers(self) -> Iterator[tuple[KnownWorker, bool]]:
        """Those that were ever heard of, and whether each is at work now."""
        words = self._places.words
        for place in sorted(self.known.by_place.keys() | self._told.keys()):
            worker = self.known.by_place.get(place) or self._worker_at(place)
            yield worker, place in words and words[place].is_alive

    def _look_at_places(self) -> Places:
        """What Redis says, but for what those had announced that were given up."""
        places = Places.read(self._broker, self._run, self._spec_digest)
        words = {
            place: replace(word, record=None) if self._is_void(place, word) else word
            for place, word in places.words.items()
        }
        return replace(places, words=words)

    def _is_void(self, place: str, word: PlaceWord) -> bool:
        worker = self.known.by_place.get(place)
        if worker is None or not worker.is_given_up or word.is_alive or word.record is None:
            return False
        return word.record.epoch == worker.given_up_epoch

    def _is_understood(self, place: str) -> bool:
        """Whether it is known what a place holds, or held when its worker ended."""
        if place in self._told:
            return True
        word = self._places.words.get(place)
        if word is None or word.is_garbled or word.record is not None:
            return False
        return word.has_told(self._run)

    def _is_unknown_to_redis(self, place: str) -> bool:
        word = self._places.words.get(place)
        return word is None or word.is_blank

    def _is_missed(self, worker: KnownWorker) -> bool:
        """Whether it would matter that nothing is heard from a worker."""
        if worker.is_given_up or worker.place in self._own_places:
            return False
        return worker.holds_what_is_not(self._is_settled) or (
            worker.is_expected and self._num_settled < self._num_planned
        )

    def _is_awaited(self, place: str, word: PlaceWord) -> bool:
        """Whether a place may hold samples of the run that the run's own files do not show."""
        if place in self._own_places:
            return False
        if place in self._told:
            heard = self._heard[place]
            return bool(heard.hidden) or any(self._hidden_letters(heard))
        return word.is_serving or word.record is not None or place in self.known.by_place

    def _is_settled(self, key: str) -> bool:
        return (
            key in self._seen_in_files
            or key in self._num_tokens_of
            or key in self._dead_in_files
            or key in self.letters
        )

    @property
    def _num_settled(self) -> int:
        stored = self._seen_in_files | self._num_tokens_of.keys()
        return len(stored | self._dead_in_files | self.letters.keys())

    def _read(self) -> dict[str, Announcement]:
        """The records of which everything was read."""
        for _ in range(_NUM_TRIES):
            self._places = self._look_at_places()
            # A record that cannot be read is another version's: its worker counts as silent.
            records = {
                place: word.record
                for place, word in self._places.words.items()
                if word.record is not None
            }
            if self._is_taken_back(records):
                self._forget()
            told = {
                place: record for place, record in records.items() if self._catch_up(place, record)
            }
            if len(told) == len(records):
                break
        return told

    def _is_taken_back(self, records: Mapping[str, Announcement]) -> bool:
        return any(
            place not in records or records[place].epoch != heard.epoch
            for place, heard in self._heard.items()
        )

    def _forget(self) -> None:
        self._heard = {}
        self._num_tokens_of = {}
        self.letters = {}

    def _catch_up(self, place: str, record: Announcement) -> bool:
        """Reads what a record promises; False where it is not there or cannot be read."""
        try:
            return self._read_on(place, record)
        except ValueError:
            return False

    def _read_on(self, place: str, record: Announcement) -> bool:
        heard = self._heard.setdefault(place, _Heard(record.epoch))
        names = place, self._run, record.epoch
        while (start := heard.num_sample_batches) < record.num_sample_batches:
            batches = self._range(announced_samples_key(*names), start, record.num_sample_batches)
            if not batches:
                return False
            for batch in batches:
                samples = dict(unpack_samples(batch))
                heard.hidden |= _left_of(
                    _left_of(samples, self._seen_in_files), self._num_tokens_of.keys()
                )
                self._num_tokens_of |= samples
            heard.num_sample_batches += len(batches)
        while (start := heard.num_letter_batches) < record.num_letter_batches:
            batches = self._range(announced_letters_key(*names), start, record.num_letter_batches)
            if not batches:
                return False
            for letter in (letter for batch in batches for letter in unpack_letters(batch)):
                self.letters.setdefault(letter.key, []).append(letter)
                heard.letter_keys[letter.key] = None
            heard.num_letter_batches += len(batches)
        return True

    def _range(self, key: str, start: int, end: int) -> list[bytes]:
        last = min(end, start + _READ_BATCHES) - 1
        return cast(list[bytes], self._broker.client.lrange(key, start, last))

    def _to_be_remembered(self) -> Iterator[tuple[str, KnownWorker]]:
        known = self.known.by_place
        for place, word in self._places.words.items():
            if word.presence is None and word.record is None:
                continue
            if place in self._told:
                yield place, self._worker_at(place)
            elif not word.is_alive or place in self._own_places:
                continue
            elif place in known and not self._is_understood(place):
                # It speaks, so it is not given up any more.
                yield place, replace(known[place], is_given_up=False, given_up_epoch="")
            elif place in known or word.is_serving:
                yield place, _worker_of(place, word)

    def _worker_at(self, place: str) -> KnownWorker:
        """A worker that has announced something, as it is to be remembered."""
        record, heard = self._told[place], self._heard[place]
        known = self.known.by_place.get(place)
        if known is not None and not all(map(self._is_in_files, known.hidden)):
            # It says as much as others would, and need not be written again.
            hidden = known.hidden
        else:
            letters = list(self._hidden_letters(heard))
            hidden = (*_some_of(heard.hidden), *_some_of(letters))
        return KnownWorker(
            place, record.worker, record.host, record.folder, hidden, is_expected=False
        )

    def _hidden_letters(self, heard: _Heard) -> Iterator[str]:
        """Keys of its dead letters that the run's own files know nothing of."""
        return (key for key in heard.letter_keys if not self._is_in_files(key))

    def _is_in_files(self, key: str) -> bool:
        return key in self._seen_in_files or key in self._dead_in_files


def _places_of(run: Path) -> Iterator[str]:
    """The folder in which the run lies, by its names as a place."""
    for folder in (run.absolute().parent, run.resolve().parent):
        with suppress(OSError, ValueError):
            yield read_place(folder)


def _worker_of(place: str, word: PlaceWord) -> KnownWorker:
    """A worker that has announced nothing of the run yet."""
    speaker = word.presence or word.record
    names = (speaker.worker, speaker.host, speaker.folder) if speaker else ("a worker", place, "")
    return KnownWorker(place, *names, hidden=(), is_expected=True)


def _some_of(keys: Collection[str]) -> Iterator[str]:
    """From all over them."""
    return islice(keys, 0, None, 1 + len(keys) // _NUM_HIDDEN)


def _left_of(samples: dict[str, int], known: AbstractSet[str]) -> dict[str, int]:
    """Those that are not known, in their order."""
    if known.isdisjoint(samples):
        return samples
    return {key: num_tokens for key, num_tokens in samples.items() if key not in known}
