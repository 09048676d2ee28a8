"""QueueLease: at most one process at a time fills the queue with a run's prompts."""

import json
import os
import socket
import threading
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final, Self, cast

import redis
from redis.exceptions import LockError
from redis.lock import Lock
from statetap_contract import MissingError

from statetap_producer.queueing.broker import Broker

#: Seconds that a lease outlives its holder, and between two renewals.
LEASE_S: Final = 10.0
_RENEWAL_S: Final = 2.0

#: Seconds between two looks at somebody else's lease.
_LOOK_S: Final = 0.2


class QueueLease:
    """A lease in Redis, held while the context is open, and renewed by a thread.

    Where another process has it, it is watched: one that is renewed has a live holder, one that is
    not runs out within ten seconds and is taken over. When Redis has lost the lease it is acquired
    anew.

    Args:
        broker: where the queue is.
        spec_digest: names the queue.
        run: name of the run.

    Raises:
        MissingError: kind ``queue-taken``, by whom and since when; also by ``check``. What
            ``Broker`` raises.
    """

    def __init__(self, broker: Broker, spec_digest: str, run: str) -> None:
        self._broker = broker
        self._run = run
        self._name = f"statetap.lease.{spec_digest}.{run}"
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            # Makes a lease different from all others of this process.
            "id": uuid.uuid4().hex,
        }
        self._token = json.dumps(holder)
        # The renewals come from a thread of their own.
        self._lock = Lock(broker.client, self._name, timeout=LEASE_S, thread_local=False)
        self._is_over = threading.Event()
        #: Set when somebody else got the lease after Redis had lost it.
        self._lost: MissingError | None = None
        self._renewals = threading.Thread(target=self._renew, name="queue lease", daemon=True)

    def __enter__(self) -> Self:
        with self._broker.asking():
            self._acquire()
        self._renewals.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._renewals.join()
        try:
            self._lock.release()
        except redis.RedisError:
            # Redis is gone, or has lost the lease: it runs out by itself.
            return

    def check(self) -> None:
        """Raises MissingError, kind ``queue-taken``, when the lease is somebody else's now."""
        if self._lost is not None:
            raise self._lost

    def _acquire(self) -> None:
        deadline = time.monotonic() + LEASE_S + 1
        left_ms = self._left_ms()
        while not self._lock.acquire(blocking=False, token=self._token):
            before_ms, left_ms = left_ms, self._left_ms()
            if left_ms > before_ms or time.monotonic() > deadline:
                raise self._taken()
            time.sleep(_LOOK_S)

    def _left_ms(self) -> int:
        return self._broker.client.pttl(self._name)

    def _renew(self) -> None:
        while not self._is_over.wait(_RENEWAL_S):
            try:
                self._renew_once()
            except redis.RedisError:
                # Whoever uses the queue hears of it. The next renewal may find Redis again.
                continue

    def _renew_once(self) -> None:
        try:
            self._lock.reacquire()
        except LockError:
            if self._lock.acquire(blocking=False, token=self._token):
                return
            self._lost = self._taken()
            self._is_over.set()

    def _taken(self) -> MissingError:
        return MissingError(
            "queue-taken",
            f"the queue of run {self._run} is being filled by {self._holder()}; wait until that "
            "has ended, or stop it",
        )

    def _holder(self) -> str:
        try:
            holder: Any = json.loads(cast(bytes, self._broker.client.get(self._name) or b""))
            return f"process {holder['pid']} on {holder['host']} since {holder['since']}"
        except (ValueError, TypeError, KeyError):
            return "another process"
