"""QueueFeed: puts prompts into the queue, never more than a window of messages at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from statetap_contract import Job, queue_name

from statetap_producer.queueing.broker import Broker
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


@dataclass(frozen=True, slots=True)
class FeedProgress:
    """How far a feed is."""

    num_enqueued: int
    #: Prompts that need no message.
    num_skipped: int
    #: Messages of all runs in the queue.
    num_waiting: int
    #: Memory that Redis has in use.
    redis_bytes: int


class QueueFeed:
    """Publishes prompts of a run in batches, and waits while the queue is full.

    Args:
        run: the run.
        broker: where the queue is.
        lease: the right to fill it.
        settled: knows how often each prompt was given out.
        window: messages that may wait in the queue, 0 for any number.
        on_progress: called after each batch and, while the queue is full, with each look at it.

    Raises:
        MissingError: by the methods: what ``Broker`` and ``QueueLease.check`` raise.
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
            part = self._batch[: self._room()]
            self._lease.check()
            self._broker.push(self._queue, part)
            self._batch = self._batch[len(part) :]
            self.num_enqueued += len(part)
            self._report()
        self._batch_bytes = 0

    def _room(self) -> int:
        """Messages that may be sent, at least one; waits for some room, not for a single place."""
        if not self._window:
            return len(self._batch)
        enough = min(len(self._batch), max(1, self._window // 10))
        while (room := self._window - self._broker.num_waiting(self._queue)) < enough:
            self._lease.check()
            self._report()
            time.sleep(_PAUSE_S)
        return room

    def _report(self) -> None:
        self._on_progress(
            FeedProgress(
                self.num_enqueued,
                self.num_skipped,
                self._broker.num_waiting(self._queue),
                self._broker.memory_bytes(),
            )
        )
