"""What a worker took from the queue and has not acknowledged: in a hash of its own.

Celery's Redis transport has one hash for all workers and cannot tell which of them died: what that
one held comes back after the visibility timeout, half an hour. From a hash of its own, a worker
gives back what its predecessor of the same name held, at once; and the producer, which sees whether
a worker is at work, does not count on what a dead one holds.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import redis
import structlog
from statetap_contract import MissingError, RejectError
from statetap_contract.transport import alive_name, taken_name

from statetap_worker.unreadable import set_aside

logger = structlog.get_logger(__name__)

#: Seconds after the last sign of life in which a worker counts as being at work.
_ALIVE_S: Final = 60
_SIGN_S: Final = 10.0


def with_own_hash(settings: Mapping[str, Any], worker: str) -> dict[str, Any]:
    """Celery's settings, with the hash in its transport's options.

    Args:
        settings: as ``celery_settings`` gives them.
        worker: see ``taken_name``.
    """
    taken = taken_name(worker)
    options = dict(
        settings["broker_transport_options"],
        unacked_key=taken,
        unacked_index_key=f"index.{taken}",
        unacked_mutex_key=f"mutex.{taken}",
    )
    return dict(settings, broker_transport_options=options)


def succeed(redis_url: str, worker: str, ledger: Path) -> None:
    """Puts into their queues, as the next ones, the messages that a predecessor held.

    Afterwards the worker counts as being at work. A Redis without memory is waited for.

    Args:
        redis_url: the Redis of the queue.
        worker: see ``taken_name``.
        ledger: where messages go that cannot be read.

    Raises:
        MissingError: kinds ``redis-unreachable`` and ``ledger-unwritable``.
    """
    try:
        with redis.Redis.from_url(redis_url, socket_timeout=15, socket_connect_timeout=5) as client:
            while True:
                try:
                    num_back = _give_back(client, taken_name(worker), ledger)
                    client.set(alive_name(taken_name(worker)), b"", ex=_ALIVE_S)
                    break
                except redis.OutOfMemoryError as error:
                    logger.warning("waiting for Redis", why=str(error))
                    time.sleep(1)
    except redis.RedisError as error:
        raise MissingError(
            "redis-unreachable", f"Redis cannot be used ({error}); start it or mend --redis"
        ) from error
    except OSError as error:
        raise MissingError(
            "ledger-unwritable", f"cannot write {ledger} ({error.strerror}); check the disk"
        ) from error
    if num_back:
        logger.warning("gave back what the worker before this one held", num_messages=num_back)


def _give_back(client: redis.Redis, taken: str, ledger: Path) -> int:
    num_back = 0
    for tag, entry in client.hscan_iter(taken, count=100):
        with client.pipeline() as pipeline:
            pipeline.hdel(taken, tag)
            pipeline.zrem(f"index.{taken}", tag)
            try:
                pipeline.rpush(*_message_in(entry))
                num_back += 1
            except RejectError as unreadable:
                set_aside(ledger, entry, taken, unreadable)
            pipeline.execute()
    return num_back


def _message_in(entry: bytes) -> tuple[str, str]:
    """Queue and message. Raises RejectError where somebody else wrote the entry."""
    try:
        message, _exchange, queue = json.loads(entry)
        if not isinstance(queue, str) or not queue:
            raise ValueError(f"{queue!r:.60} is no queue")
    except (ValueError, TypeError, RecursionError) as error:
        raise RejectError("message-unreadable", f"a worker held no message: {error}") from error
    return queue, json.dumps(message)


class Pulse:
    """A thread that says in Redis that the worker is at work. Runs in one of its children."""

    def __init__(self, redis_url: str, worker: str) -> None:
        self._client = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)
        self._key = alive_name(taken_name(worker))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def start(self) -> None:
        """From now on, until it is closed."""
        self._thread.start()

    def close(self) -> None:
        """The worker ends; what it still holds goes back by itself."""
        self._is_over.set()
        self._thread.join(_SIGN_S)
        self._client.close()

    def _beat(self) -> None:
        while True:
            with suppress(redis.RedisError):
                self._client.set(self._key, b"", ex=_ALIVE_S)
            if self._is_over.wait(_SIGN_S):
                return
