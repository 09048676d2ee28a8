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
from typing import Any, Final, cast

import redis

from statetap_worker.lease_holder import LeaseHolder

#: Seconds after which a lease ends whose holder is on another host and may be dead. Longer than
#: nearly every prompt takes; one that takes longer may be extracted twice. And seconds for which it
#: is said where a sample was stored: a message that is given back is the next to be taken.
_LEASE_S: Final = 60

_LOOK_S: Final = 0.2

#: Redis is asked twice a sample; one that is gone shall not hold samples up.
_REDIS_TIMEOUT_S: Final = 3.0

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

    Args:
        redis_url: the Redis of the queue.
        holder: this process.
        place: the folder of runs.
    """

    def __init__(self, redis_url: str, holder: LeaseHolder, place: str) -> None:
        # One connection, without the client around it: that costs more than what is asked. It
        # connects by itself, again after every failure.
        self._connection = redis.ConnectionPool.from_url(
            redis_url,
            socket_timeout=_REDIS_TIMEOUT_S,
            socket_connect_timeout=_REDIS_TIMEOUT_S,
        ).make_connection()
        #: Whether Redis was told something, and its answer was not read yet.
        self._is_owed = False
        self._holder = holder
        self._value = holder.encode()
        self._place = place

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
            while (found := self._take(name, run)) is not None and not _says_stored(found):
                time.sleep(_LOOK_S)
            is_held = found is None
            lease.is_stored_elsewhere = not is_held
        try:
            yield lease
        finally:
            with suppress(redis.RedisError):
                if lease.is_stored:
                    self._tell("SET", name, _stored_in(self._place, run), "EX", _LEASE_S)
                elif is_held:
                    self._tell("EVAL", _RELEASE, 1, name, self._value)

    def close(self) -> None:
        """Ends the connection."""
        self._disconnect()

    def _take(self, name: str, run: str) -> bytes | None:
        """None where the lease is this process's now, else what stands there, which may be ''."""
        if self._ask("SET", name, self._value, "NX", "EX", _LEASE_S):
            return None
        found = cast(bytes, self._ask("GET", name) or b"")
        if self._is_over(found, run):
            self._ask("SET", name, self._value, "EX", _LEASE_S)
            return None
        return found

    def _is_over(self, found: bytes, run: str) -> bool:
        """Whether it hinders nobody: of this process, of a dead one, or of the past.

        What is stored for another run is not stored for this one. Of its own folder a process knows
        better: it looked into the shards.
        """
        if _says_stored(found):
            place, _, other_run = found.removeprefix(_STORED).decode().partition("/")
            return place == self._place or other_run != run
        return found == self._value or self._holder.outlives(found)

    def _tell(self, *command: str | bytes | int) -> None:
        """One command, whose answer is for the next one to read. Raises redis.RedisError."""
        self._send(*command)
        self._is_owed = True

    def _ask(self, *command: str | bytes | int) -> Any:
        """One command's answer. Raises redis.RedisError."""
        try:
            self._send(*command)
            return self._connection.read_response()
        except redis.ResponseError:
            raise  # is an answer
        except BaseException:
            # The answer may come yet, and would be taken for the next one's.
            self._disconnect()
            raise

    def _send(self, *command: str | bytes | int) -> None:
        """Over another connection where Redis closed this one, as one does that ends."""
        try:
            if self._is_owed:
                self._read_owed()
            if self._connection.can_read():
                self._disconnect()
        except redis.RedisError:
            self._disconnect()
        self._connection.send_command(*command)  # type: ignore[no-untyped-call]

    def _read_owed(self) -> None:
        """The answer to what was told last; a refusal changes nothing any more."""
        with suppress(redis.ResponseError):
            self._connection.read_response()
        self._is_owed = False

    def _disconnect(self) -> None:
        self._is_owed = False
        self._connection.disconnect()  # type: ignore[no-untyped-call]
