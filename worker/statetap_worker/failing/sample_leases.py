"""SampleLeases: says in Redis who is at a sample, so that two processes seldom are.

Advisory. Celery may deliver a message twice; the second process then waits for the first instead
of asking its own server for the same states. Truth is in the shards: a lease that is lost, or Redis
with it, costs work and no sample.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, cast

import redis

from statetap_worker.lease_holder import LeaseHolder

#: Seconds after which a lease ends whose holder is on another host and may be dead. Longer than
#: nearly every prompt takes; one that takes longer may be extracted twice.
_LEASE_S: Final = 60

_LOOK_S: Final = 0.2

#: Redis is asked twice a sample; one that is gone shall not hold samples up.
_REDIS_TIMEOUT_S: Final = 3.0

#: Deletes a lease where it is still the holder's.
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


def lease_key(key: str) -> str:
    """Where the lease of a sample stands in Redis."""
    return f"statetap.sample-lease.{key}"


class SampleLeases:
    """The leases of one process.

    Args:
        redis_url: the Redis of the queue.
        holder: this process.
    """

    def __init__(self, redis_url: str, holder: LeaseHolder) -> None:
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

    @contextmanager
    def held(self, key: str, is_stored: Callable[[], bool]) -> Iterator[None]:
        """Holds the lease of a sample while the context lasts.

        Waits while another process has it, at most until it runs out or the sample is stored.

        Args:
            key: sample key.
            is_stored: whether there is nothing left to do.
        """
        is_held = False
        with suppress(redis.RedisError):
            while not (is_held := self._take(key)) and not is_stored():
                time.sleep(_LOOK_S)
        try:
            yield
        finally:
            if is_held:
                with suppress(redis.RedisError):
                    self._tell("EVAL", _RELEASE, 1, lease_key(key), self._value)

    def close(self) -> None:
        """Ends the connection."""
        self._disconnect()

    def _take(self, key: str) -> bool:
        name = lease_key(key)
        if self._ask("SET", name, self._value, "NX", "EX", _LEASE_S):
            return True
        held = cast(bytes | None, self._ask("GET", name))
        if held is None or not (held == self._value or self._holder.outlives(held)):
            return False
        self._ask("SET", name, self._value, "EX", _LEASE_S)
        return True

    def _tell(self, *command: str | bytes | int) -> None:
        """One command, whose answer is for the next one to read. Raises redis.RedisError."""
        self._connection.send_command(*command)  # type: ignore[no-untyped-call]
        self._is_owed = True

    def _ask(self, *command: str | bytes | int) -> Any:
        """One command's answer. Raises redis.RedisError."""
        try:
            if self._is_owed:
                self._read_owed()
            self._connection.send_command(*command)  # type: ignore[no-untyped-call]
            return self._connection.read_response()
        except redis.ResponseError:
            raise  # is an answer
        except BaseException:
            # The answer may come yet, and would be taken for the next one's.
            self._disconnect()
            raise

    def _read_owed(self) -> None:
        """The answer to what was told last; a refusal changes nothing any more."""
        with suppress(redis.ResponseError):
            self._connection.read_response()
        self._is_owed = False

    def _disconnect(self) -> None:
        self._is_owed = False
        self._connection.disconnect()  # type: ignore[no-untyped-call]
