"""The producer's own view of Redis: is it there, and how much of a run lies in it."""

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import redis
from kombu.exceptions import OperationalError
from redis.exceptions import NoPermissionError
from statetap_contract import MissingError, UsageError

#: Seconds to wait for a connection or an answer before Redis counts as unreachable.
_TIMEOUT_S: Final = 3.0

#: Hash in which Celery's Redis transport keeps messages that were taken and not acknowledged.
_UNACKED: Final = "unacked"


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Messages of one queue."""

    #: Waiting for a worker.
    num_queued: int
    #: Held by workers.
    num_unacked: int


class Broker:
    """A Redis that has answered.

    Args:
        url: ``redis://[:PASSWORD@]HOST[:PORT]/[DB]`` or ``rediss://…``.

    Raises:
        UsageError: kind ``redis-url``.
        MissingError: kind ``redis-unreachable`` or ``redis-password``; also by the methods.
    """

    def __init__(self, url: str) -> None:
        self.address = _address(url)
        try:
            # No retries: a person is waiting for the answer.
            self._client = redis.Redis.from_url(
                url,
                socket_connect_timeout=_TIMEOUT_S,
                socket_timeout=_TIMEOUT_S,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
            self._client.ping()
        except redis.RedisError as error:
            raise redis_error(self.address, error) from error
        except (TypeError, ValueError) as error:
            # An option after the question mark that redis-py does not have.
            raise _url_error() from error

    def counts(self, queue: str) -> QueueCounts:
        """How many messages of the queue Redis holds, waiting and taken."""
        try:
            with self._client.pipeline() as pipeline:
                pipeline.llen(queue)
                pipeline.hvals(_UNACKED)
                num_queued, unacked = pipeline.execute()
        except redis.RedisError as error:
            raise redis_error(self.address, error) from error
        return QueueCounts(num_queued, sum(_queue_of(entry) == queue for entry in unacked))


def redis_error(address: str, error: Exception) -> MissingError:
    """What a failure of Redis means to a person. ``address`` must hold no password."""
    if isinstance(error, OperationalError) and isinstance(error.__cause__, redis.RedisError):
        error = error.__cause__
    if isinstance(error, redis.AuthenticationError | NoPermissionError):
        return MissingError(
            "redis-password",
            f"Redis at {address} refuses the password; write it into the address: "
            "redis://:PASSWORD@HOST:PORT/0",
        )
    if isinstance(error, redis.OutOfMemoryError):
        return MissingError(
            "redis-full",
            f"Redis at {address} has no memory left; let workers drain the queue or raise "
            "maxmemory, then run statetap enqueue again",
        )
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


def _queue_of(entry: bytes) -> str | None:
    """The queue an unacknowledged message came from: kombu keeps ``[message, exchange, key]``."""
    try:
        _, _, routing_key = json.loads(entry)
    except ValueError:
        return None
    return routing_key if isinstance(routing_key, str) else None
