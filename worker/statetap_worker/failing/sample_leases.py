"""SampleLeases: says in Redis who is at a sample, to workers with other folders of runs.

Advisory. Celery may deliver a message twice, to workers with disks of their own; the second process
then waits for the first instead of asking its own server for the same states, and is told for a
while where the sample was stored. Truth is in the shards: a lease that is lost, or Redis with it,
costs work and no sample. Processes that share a folder have ``KeyLocks``.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, cast

import redis
from statetap_contract.announcement import serving_key

from statetap_worker.failing.direct_redis import DirectRedis
from statetap_worker.lease_holder import LeaseHolder

#: Seconds after which a lease ends whose holder is on another host and may be dead. Longer than
#: nearly every prompt takes; one that takes longer may be extracted twice. And seconds for which it
#: is said where a sample was stored: a message that is given back is the next to be taken.
_LEASE_S: Final = 60

_LOOK_S: Final = 0.2

#: Seconds after which a folder whose workers were started meanwhile is noticed.
_NEWS_S: Final = 5.0

#: Begins what stands in the place of the lease of a stored sample. No worker's name has a blank.
_STORED: Final = b"stored in "

#: Deletes a lease where it is still the holder's.
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def lease_key(key: str) -> str:
    """Where the lease of a sample stands in Redis."""
    return f"statetap.sample-lease.{key}"


def _stored_in(place: str, run: str) -> bytes:
    return _STORED + f"{place}/{run}".encode()


def _says_stored(found: bytes) -> bool:
    return found.startswith(_STORED)


@dataclass(slots=True)
class SampleLease:
    """What is known of a sample while its lease is held."""

    #: It is in a shard of another folder, by what was said there: nothing is left to do. Should
    #: that be wrong, ``reconcile`` finds out.
    is_stored_elsewhere: bool = False
    #: To be set once it is in a shard of this folder, durably.
    is_stored: bool = False


class SampleLeases:
    """The leases of one process.

    None are taken while this folder is the only one whose workers listen to the queue.

    Args:
        redis_url: the Redis of the queue.
        spec_digest: of the capture spec, which names the queue.
        holder: this process.
        place: the folder of runs.
    """

    def __init__(self, redis_url: str, spec_digest: str, holder: LeaseHolder, place: str) -> None:
        self._redis = DirectRedis(redis_url)
        self._serving = serving_key(spec_digest)
        self._holder = holder
        self._value = holder.encode()
        self._place = place
        self._has_neighbours = True
        #: Until when that is taken for granted, by the monotonic clock.
        self._known_until_s = 0.0

    @contextmanager
    def held(self, run: str, key: str) -> Iterator[SampleLease]:
        """Holds the lease of a sample while the context lasts.

        Waits while another process has it, at most until it runs out or the sample is stored.

        Args:
            run: for which the sample is wanted.
            key: sample key.
        """
        name = lease_key(key)
        lease = SampleLease()
        is_held = False
        with suppress(redis.RedisError):
            self._look_around()
            if self._has_neighbours:
                while (found := self._take(name, run)) is not None and not _says_stored(found):
                    time.sleep(_LOOK_S)
                is_held = found is None
                lease.is_stored_elsewhere = not is_held
        try:
            yield lease
        finally:
            with suppress(redis.RedisError):
                if lease.is_stored and self._has_neighbours:
                    said = _stored_in(self._place, run)
                    self._redis.tell("SET", name, said, "EX", _LEASE_S)
                elif is_held:
                    self._redis.tell("EVAL", _RELEASE, 1, name, self._value)

    def close(self) -> None:
        """Ends the connection."""
        self._redis.close()

    def _look_around(self) -> None:
        """Finds out whether there are workers with other folders, once in a while."""
        if (now_s := time.monotonic()) > self._known_until_s:
            places = set(self._redis.ask("SMEMBERS", self._serving))
            # This worker's own is there from its first second on, unless Redis just lost it.
            self._has_neighbours = places != {self._place.encode()}
            self._known_until_s = now_s + _NEWS_S

    def _take(self, name: str, run: str) -> bytes | None:
        """None where the lease is this process's now, else what stands there, which may be ''."""
        if self._redis.ask("SET", name, self._value, "NX", "EX", _LEASE_S):
            return None
        found = cast(bytes, self._redis.ask("GET", name) or b"")
        if self._is_over(found, run):
            self._redis.ask("SET", name, self._value, "EX", _LEASE_S)
            return None
        return found

    def _is_over(self, found: bytes, run: str) -> bool:
        """Whether it hinders nobody: of this process, of a dead one, or of the past.

        What is stored for another run is not stored for this one. Of its own folder a process knows
        better: it looked into the shards.
        """
        if _says_stored(found):
            where = found.removeprefix(_STORED).decode(errors="replace")
            place, _, other_run = where.partition("/")
            return place == self._place or other_run != run
        return found == self._value or self._holder.outlives(found)
