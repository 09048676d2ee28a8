"""NoticeBoard: where one place's announcements stand in Redis."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Final, cast

import redis
from statetap_contract.announcement import (
    PLACES_KEY,
    Announcement,
    Presence,
    announced_key,
    announced_letters_key,
    announced_samples_key,
    presence_key,
    serving_key,
    speaker_key,
)

from statetap_worker.lease_holder import LeaseHolder

_PUBLISH: Final = files("statetap_worker.announcing").joinpath("publish.lua").read_text()

#: Writes a value where another one stands. Returns 0, and does nothing, where it does not.
_REPLACE: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""

#: Seconds after which another worker speaks for a place whose speaker was killed.
_LEASE_S: Final = 20

#: Seconds after which Redis drops an epoch that was begun and never completed.
_INCOMPLETE_S: Final = 600


@dataclass(frozen=True, slots=True)
class Speaker:
    """Who announces, as a record says it."""

    worker: str
    host: str
    folder: str


class NoticeBoard:
    """All methods raise ``redis.RedisError`` when Redis cannot be used."""

    def __init__(self, client: redis.Redis, place: str, speaker: Speaker) -> None:
        self._client = client
        self._place = place
        self._speaker = speaker
        self._publish = client.register_script(_PUBLISH)
        self._replace = client.register_script(_REPLACE)
        # The parent's, so that a child in the place of a killed one goes on at once.
        self._lease = LeaseHolder.of(speaker.worker, speaker.host, os.getppid())
        #: The presence as it was left in Redis.
        self._presence: bytes | None = None

    def take_word(self) -> bool:
        """Whether this is the one that speaks for the place, now and for the next seconds."""
        key, lease = speaker_key(self._place), self._lease.encode()
        if self._client.set(key, lease, nx=True, ex=_LEASE_S):
            return True
        held = cast(bytes | None, self._client.get(key))
        if held == lease:
            self._client.expire(key, _LEASE_S)
            return True
        if held is None or not self._lease.succeeds(held):
            return False
        self._client.set(key, lease, ex=_LEASE_S)
        return True

    def give_word(self) -> None:
        """Lets another worker speak at once."""
        if self.take_word():
            self._client.delete(speaker_key(self._place))

    def serve(self, spec_digest: str) -> None:
        """Says that a worker of the place listens to a queue, whoever speaks for the place."""
        self._client.sadd(serving_key(spec_digest), self._place)

    def now_us(self) -> int:
        """Microseconds since 1970 by the clock of Redis."""
        seconds, microseconds = self._client.time()
        return 1_000_000 * seconds + microseconds

    def is_as_left(self) -> bool:
        """Whether Redis has lost nothing of the place since ``appear``; else nothing is said."""
        held = self._client.get(presence_key(self._place))
        if self._presence is not None and held == self._presence:
            return True
        self._presence = self._presence_of(0, ())
        with self._client.pipeline() as pipeline:
            pipeline.set(presence_key(self._place), self._presence)
            pipeline.sadd(PLACES_KEY, self._place)
            pipeline.execute()
        return False

    def appear(self, time_us: int, behind: Sequence[str]) -> None:
        """Says until when the announcements are complete, unless Redis has lost some meanwhile.

        Args:
            time_us: see ``Presence``.
            behind: runs for which this is not so.
        """
        presence = self._presence_of(time_us, behind)
        if self._replace(keys=[presence_key(self._place)], args=[self._presence or b"", presence]):
            self._presence = presence

    def _presence_of(self, time_us: int, behind: Sequence[str]) -> bytes:
        speaker = self._speaker
        presence = Presence(speaker.worker, speaker.host, speaker.folder, time_us, tuple(behind))
        return presence.encode()

    def runs(self) -> set[str]:
        """The runs that there are records of."""
        names = cast(list[bytes], self._client.hkeys(self._records))
        return {name.decode(errors="replace") for name in names}

    def blank(self, epoch: str) -> Announcement:
        """The record of an epoch of which nothing is published yet."""
        speaker = self._speaker
        return Announcement(epoch, 0, 0, 0, speaker.worker, speaker.host, speaker.folder, 0, 0)

    def add(
        self,
        run: str,
        published: Announcement,
        samples: Sequence[bytes] = (),
        letters: Sequence[bytes] = (),
        num_samples: int = 0,
        free_bytes: int = 0,
        *,
        is_complete: bool,
    ) -> Announcement | None:
        """Adds batches to an epoch's lists.

        Args:
            run: name of the run.
            published: what the epoch has so far, as ``blank`` or this method returned it.
            samples: batches as ``pack_samples`` makes them.
            letters: batches as ``pack_letters`` makes them.
            num_samples: samples in these batches.
            free_bytes: room on the run's disk.
            is_complete: whether the producer shall go by the epoch from now on, and by no other.

        Returns:
            What the epoch has now; None when Redis has lost what it had, or another worker has the
            word: begin another.
        """
        if not self.take_word():
            return None
        seconds, _ = self._client.time()
        announcement = replace(
            published,
            num_sample_batches=published.num_sample_batches + len(samples),
            num_letter_batches=published.num_letter_batches + len(letters),
            num_samples=published.num_samples + num_samples,
            time_s=seconds,
            free_bytes=free_bytes,
        )
        done = self._publish(
            keys=[
                *self._lists(run, published.epoch),
                self._records,
                PLACES_KEY,
                *(self._lists_of_other(run, published.epoch) if is_complete else ()),
            ],
            args=[
                published.num_sample_batches,
                published.num_letter_batches,
                self._place,
                run,
                announcement.encode() if is_complete else b"",
                _INCOMPLETE_S,
                len(samples),
                *samples,
                *letters,
            ],
        )
        return announcement if done else None

    def discard(self, run: str, epoch: str) -> None:
        """Deletes the lists of an epoch that never became complete."""
        self._client.delete(*self._lists(run, epoch))

    def withdraw(self, run: str) -> None:
        """Takes back all that was announced of a run."""
        lists = self._lists_of_other(run, "")
        with self._client.pipeline() as pipeline:
            pipeline.hdel(self._records, run)
            if lists:
                pipeline.delete(*lists)
            pipeline.execute()

    @property
    def _records(self) -> str:
        return announced_key(self._place)

    def _lists(self, run: str, epoch: str) -> tuple[str, str]:
        return (
            announced_samples_key(self._place, run, epoch),
            announced_letters_key(self._place, run, epoch),
        )

    def _lists_of_other(self, run: str, epoch: str) -> tuple[str, ...]:
        """The lists that the record names now, unless they are this epoch's."""
        data = cast(bytes | None, self._client.hget(self._records, run))
        try:
            other = Announcement.decode(data).epoch if data else epoch
        except ValueError:
            # Of another version of statetap: nobody reads its lists.
            return ()
        return () if other == epoch else self._lists(run, other)
