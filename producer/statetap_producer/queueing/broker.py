"""Redis as the producer uses it: every failure is one sentence, without the password."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self, cast
from urllib.parse import urlsplit

import redis
from redis.exceptions import NoPermissionError
from statetap_contract import MissingError, UsageError
from statetap_contract.encryption import encryption_fault
from statetap_contract.transport import TAKEN_PATTERN, alive_name, taken_index_name

#: Seconds after which a worker that gave no sign of life is not waited for.
_LOST_S: Final = 86_400

#: Seconds to wait for a connection before Redis counts as unreachable.
_CONNECT_S: Final = 3.0

#: Seconds to wait for an answer: a busy disk under the append-only file takes some of them.
_ANSWER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RedisMemory:
    """How much memory Redis uses, and may use."""

    used_bytes: int
    #: ``maxmemory``; 0 is no limit.
    limit_bytes: int


class Broker:
    """A Redis that has answered.

    Args:
        url: ``redis://[:PASSWORD@]HOST[:PORT]/[DB]`` or ``rediss://…``.

    Raises:
        UsageError: kind ``redis-url``.
        MissingError: kind ``redis-unreachable``, ``redis-untrusted``, ``redis-password``,
            ``redis-full`` or ``redis-foreign-key``; also by the methods.
    """

    def __init__(self, url: str) -> None:
        #: Host, port and database, without the password.
        self.address = _address(url)
        try:
            # No retries: a person is waiting for the answer. And a command that was sent twice
            # would queue its prompts twice.
            self.client = redis.Redis.from_url(
                url,
                socket_connect_timeout=_CONNECT_S,
                socket_timeout=_ANSWER_S,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
        except (TypeError, ValueError) as error:
            # An option after the question mark that redis-py does not have.
            raise _url_error() from error
        try:
            with self.asking():
                self.client.ping()
        except (TypeError, ValueError) as error:
            raise _url_error() from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Within the block what redis-py raises becomes a MissingError."""
        try:
            yield
        except redis.RedisError as error:
            raise redis_error(self.address, error) from error

    def num_waiting(self, queue: str) -> int:
        """Messages of all runs that wait in the queue."""
        with self.asking():
            return self.client.llen(queue)

    def push(self, queue: str, messages: Sequence[bytes]) -> None:
        """Puts messages at the queue's end: all of them or, when Redis refuses, none.

        When the connection breaks in between, nobody knows which of the two it was.
        """
        with self.asking():
            self.client.lpush(queue, *messages)

    def num_taken(self) -> int:
        """Messages of all queues that workers hold."""
        hashes = self.taken_hashes()
        with self.asking():
            return sum(self.client.hlen(name) for name in hashes)

    def taken_hashes(self) -> list[bytes]:
        """Names of the hashes of workers at work, each with the messages that the worker holds.

        What a worker held that is gone comes back when it is started again, if it ever is.
        """
        with self.asking():
            names = self._taken_names()
            return [name for name in names if self.client.exists(alive_name(name.decode()))]

    def forget_lost_workers(self) -> None:
        """Deletes what workers hold that were last at work a day ago or more.

        Their samples are known to be missing without it, and one that comes back under its name
        finds nothing to give back. Containers may have another name each time.
        """
        with self.asking():
            seconds, _ = self.client.time()
            for name in self._taken_names():
                index = taken_index_name(name.decode())
                newest = cast(
                    list[tuple[bytes, float]],
                    self.client.zrange(index, 0, 0, desc=True, withscores=True),
                )
                is_old = not newest or newest[0][1] < seconds - _LOST_S
                if is_old and not self.client.exists(alive_name(name.decode())):
                    self.client.delete(name, index)

    def _taken_names(self) -> list[bytes]:
        return list(self.client.scan_iter(match=TAKEN_PATTERN, count=1000, _type="hash"))

    def memory(self) -> RedisMemory:
        """Memory that Redis has in use, and its limit."""
        with self.asking():
            memory = cast(dict[str, int], self.client.info("memory"))
        return RedisMemory(memory["used_memory"], memory["maxmemory"])


def redis_error(address: str, error: redis.RedisError) -> MissingError:
    """What a failure of Redis means to a person. ``address`` must hold no password."""
    if isinstance(error, redis.AuthenticationError | NoPermissionError):
        return MissingError(
            "redis-password",
            f"Redis at {address} refuses the password; write it into the address: "
            "redis://:PASSWORD@HOST:PORT/0",
        )
    if isinstance(error, redis.OutOfMemoryError):
        return MissingError(
            "redis-full",
            f"Redis at {address} has no memory left; raise its limit (CONFIG SET maxmemory), then "
            "run the command again; a smaller --window keeps it from filling up",
        )
    if isinstance(error, redis.ResponseError) and str(error).startswith("WRONGTYPE"):
        return MissingError(
            "redis-foreign-key",
            f"Redis at {address} holds something else under a name that statetap uses "
            f"({error}); give statetap a database of its own: redis://:PASSWORD@HOST:PORT/1",
        )
    if fault := encryption_fault(error):
        return MissingError("redis-untrusted", f"Redis at {address} is not used: {fault}")
    return MissingError(
        "redis-unreachable",
        f"Redis at {address} cannot be used ({error}); start it or correct its address",
    )


def _address(url: str) -> str:
    """Host, port and database of a URL, which is all of it that may be shown."""
    try:
        parts = urlsplit(url)
        host, port, database = parts.hostname, parts.port or 6379, parts.path.strip("/") or "0"
    except ValueError:
        host = None
    if not host or parts.scheme not in ("redis", "rediss") or not database.isdecimal():
        raise _url_error()
    return f"{host}:{port}/{database}"


def _url_error() -> UsageError:
    return UsageError("redis-url", "the Redis address must look like redis://:PASSWORD@HOST:PORT/0")
