"""What a worker took from the queue and has not acknowledged: in a hash of its own.

Celery's Redis transport has one hash for all workers and cannot tell which of them died: what that
one held comes back after the visibility timeout, half an hour. From a hash of its own, a worker
gives back what its predecessor of the same name held, or it itself before it lost its connection,
at once; and the producer, which sees whether a worker is at work, does not count on what a dead one
holds.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import redis
import structlog
from statetap_contract import RejectError
from statetap_contract.transport import alive_name, taken_index_name, taken_name

from statetap_worker.queueing.unreadable import set_aside

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
        unacked_index_key=taken_index_name(taken),
        unacked_mutex_key=f"mutex.{taken}",
    )
    return dict(settings, broker_transport_options=options)


def say_alive(client: redis.Redis, taken: str) -> None:
    """The worker counts as being at work for the next minute.

    Args:
        client: to the Redis of the queue.
        taken: name of the worker's hash.

    Raises:
        redis.OutOfMemoryError: Redis has no memory, not even for this.
        redis.RedisError: Redis cannot be used.
    """
    client.set(alive_name(taken), b"", ex=_ALIVE_S)


def requeue_held(client: redis.Redis, taken: str, ledger: Path) -> None:
    """Puts into their queues, as the next ones, the messages that a hash holds.

    For a worker that has just begun to listen, or has lost its connection and listens anew: it
    can acknowledge none of them any more.

    Args:
        client: to the Redis of the queue.
        taken: name of the hash.
        ledger: where messages go that cannot be read.

    Raises:
        redis.RedisError: Redis cannot be used.
        OSError: the ledger cannot be written.
    """
    num_back = 0
    for tag, entry in client.hscan_iter(taken, count=100):
        with client.pipeline() as pipeline:
            pipeline.hdel(taken, tag)
            pipeline.zrem(taken_index_name(taken), tag)
            try:
                pipeline.rpush(*_message_in(entry))
                num_back += 1
            except RejectError as unreadable:
                set_aside(ledger, entry, taken, unreadable)
            pipeline.execute()
    if num_back:
        logger.warning("gave back what this worker held before", num_messages=num_back)


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
    """Says in Redis that the worker is at work, from a thread in one of its children."""

    def __init__(self, redis_url: str, worker: str) -> None:
        self._client = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)
        self._taken = taken_name(worker)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="pulse", daemon=True)

    def beat(self) -> None:
        """The worker counts as being at work for the next minute. Without Redis, nothing."""
        with suppress(redis.RedisError):
            # A Redis without memory takes the first, and not the second.
            if not self._client.expire(alive_name(self._taken), _ALIVE_S):
                say_alive(self._client, self._taken)

    def start(self) -> None:
        """Beats on, until it is closed."""
        self._thread.start()

    def close(self) -> None:
        """The worker ends; what it still holds goes back by itself."""
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join(_SIGN_S)
        self._client.close()

    def _beat_on(self) -> None:
        while True:
            self.beat()
            if self._is_over.wait(_SIGN_S):
                return
