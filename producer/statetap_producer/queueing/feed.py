"""QueueFeed: puts prompts into the queue, never more than a window or Redis has room for."""

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from rich.filesize import decimal
from statetap_contract import Job, MissingError, queue_name

from statetap_producer.queueing.broker import Broker, RedisMemory
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.queueing.settled import Settled
from statetap_producer.run.plan import PlannedPrompt
from statetap_producer.run.run_folder import RunFolder

#: Messages, and their bytes, sent to Redis in one go.
_BATCH: Final = 1000
_BATCH_BYTES: Final = 4 << 20

#: Seconds between two looks at a queue that is full.
_PAUSE_S: Final = 0.2

#: The part of Redis's memory that is filled. Workers need the rest: a Redis without memory takes no
#: acknowledgement, so that the queue would never become shorter.
_FILLED_PART: Final = 0.8

#: Memory that is waited for, as a part of all, so that messages go in by more than one at a time.
_WORTHWHILE_PART: Final = 0.01

#: Seconds without a message anywhere after which nobody will make room. Redis frees what it read a
#: command into after some of them.
_NO_ROOM_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """How far a feed is."""

    num_enqueued: int
    #: Prompts that need no message.
    num_skipped: int
    #: Messages of all runs in the queue.
    num_waiting: int
    #: Memory of Redis.
    memory: RedisMemory
    #: Whether it has no room for more, so that the feed waits.
    is_memory_full: bool = False


class QueueFeed:
    """Publishes prompts of a run in batches, and waits while the queue, or Redis, is full.

    Args:
        run: the run.
        broker: where the queue is.
        lease: the right to fill it.
        settled: knows how often each prompt was given out.
        window: messages that may wait in the queue, 0 for any number.
        on_progress: called after each batch and, while there is no room, with each look at it.

    Raises:
        MissingError: by the methods: what ``Broker`` and ``QueueLease.check`` raise;
            ``redis-full`` also where Redis has no room although no message is in it.
    """

    def __init__(
        self,
        run: RunFolder,
        broker: Broker,
        lease: QueueLease,
        settled: Settled,
        window: int,
        on_progress: Callable[[FeedProgress], None] = lambda _: None,
    ) -> None:
        inputs = run.read_record().inputs
        self._run_name = run.name
        self._spec_digest = inputs.spec.digest
        self._text_digests = inputs.tokenizer_digest, inputs.template_digest
        self._queue = queue_name(self._spec_digest)
        self._envelope = Envelope(self._spec_digest)
        self._broker = broker
        self._lease = lease
        self._settled = settled
        self._window = window
        self._on_progress = on_progress
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        #: Messages that Redis has taken, and prompts that needed none.
        self.num_enqueued = 0
        self.num_skipped = 0

    def add(self, row: PlannedPrompt) -> None:
        """Takes one prompt; it is in the queue after the next ``flush`` at the latest."""
        attempt = self._settled.attempt(row.key)
        digests = self._text_digests
        job = Job(row.key, self._run_name, self._spec_digest, row.prompt, *digests, attempt)
        message = self._envelope.wrap(job)
        self._batch.append(message)
        self._batch_bytes += len(message)
        if len(self._batch) == _BATCH or self._batch_bytes >= _BATCH_BYTES:
            self.flush()

    def skip(self) -> None:
        """Counts a prompt that needs no message."""
        self.num_skipped += 1

    def flush(self) -> None:
        """Publishes what was taken; returns when all of it is in the queue."""
        while self._batch:
            part = self._batch[: self._wait_for_room()]
            self._lease.check()
            self._broker.push(self._queue, part)
            self._batch = self._batch[len(part) :]
            self.num_enqueued += len(part)
            self._on_progress(self._look())
        self._batch_bytes = 0

    def _wait_for_room(self) -> int:
        """Messages that may be sent, at least one."""
        empty_since_s: float | None = None
        while True:
            now = self._look()
            if (num_messages := min(self._places(now), self._num_that_fit(now.memory))) > 0:
                return num_messages
            self._lease.check()
            self._on_progress(now)
            if now.num_waiting or self._broker.num_taken():
                empty_since_s = None
            elif empty_since_s is None:
                empty_since_s = time.monotonic()
            elif time.monotonic() - empty_since_s >= _NO_ROOM_AFTER_S:
                raise self._too_small(now.memory)
            time.sleep(_PAUSE_S)

    def _look(self) -> FeedProgress:
        memory = self._broker.memory()
        return FeedProgress(
            self.num_enqueued,
            self.num_skipped,
            self._broker.num_waiting(self._queue),
            memory,
            is_memory_full=bool(self._batch) and not self._num_that_fit(memory),
        )

    def _places(self, now: FeedProgress) -> int:
        """Messages for which the window has room: some, or none, but not a single one."""
        if not self._window:
            return len(self._batch)
        enough = min(len(self._batch), max(1, self._window // 10))
        room = self._window - now.num_waiting
        return room if room >= enough else 0

    def _num_that_fit(self, memory: RedisMemory) -> int:
        """Messages of the batch for which Redis has memory; none where it is hardly worth it."""
        if not memory.limit_bytes:
            return len(self._batch)
        # Redis holds a command twice while it takes it.
        room = (memory.limit_bytes * _FILLED_PART - memory.used_bytes) / 2
        ends = list(accumulate(map(len, self._batch)))
        num_messages = bisect_right(ends, room)
        is_worthwhile = room >= memory.limit_bytes * _WORTHWHILE_PART
        return num_messages if is_worthwhile or num_messages == len(self._batch) else 0

    def _too_small(self, memory: RedisMemory) -> MissingError:
        return MissingError(
            "redis-full",
            f"Redis at {self._broker.address} uses {decimal(memory.used_bytes)} of "
            f"{decimal(memory.limit_bytes)} while no message is in it, and a fifth is left to "
            "workers; raise its limit (CONFIG SET maxmemory), then run the command again",
        )
