"""Puts back what was lost: one round enqueues what is neither stored, dead nor queued."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice

from statetap_contract import queue_name

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.feed import QueueFeed
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.queueing.run_state import RunNumbers, RunState
from statetap_producer.run.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """What a round found and did."""

    #: As found: ``missing`` is the number before anything was enqueued.
    numbers: RunNumbers
    num_enqueued: int
    #: Missing prompts for which the window had no room.
    num_beyond_window: int
    #: Missing prompts that a worker may hold of which nothing was heard.
    num_held_back: int
    #: Those workers.
    silent_workers: tuple[str, ...]

    @property
    def is_over(self) -> bool:
        """Whether every prompt is stored or dead."""
        return self.numbers.pending == 0


def reconcile(
    run: RunFolder,
    redis_url: str,
    *,
    window: int,
    without: Collection[str] = (),
) -> ReconcileOutcome:
    """Looks once, and enqueues what is missing, as far as the window has room.

    Args:
        run: a planned run.
        redis_url: the broker; see ``Broker``.
        window: messages that may wait in the queue, 0 for any number.
        without: workers to give up: their disks are gone, and what they held is extracted again.

    Raises:
        UsageError: kind ``worker-unknown``: a worker to do without was never heard of; kind
            ``worker-alive``: it is at work.
        MissingError: kind ``queue-taken`` and those of ``Broker``.
        StatetapError: what ``RunState`` raises.
    """
    spec_digest = run.read_record().inputs.spec.digest
    with Broker(redis_url) as broker, QueueLease(broker, spec_digest, run.name) as lease:
        state = RunState(run, broker)
        broker.forget_lost_workers()
        state.give_up(without)
        if state.missing:
            state.wait_for_announcements()
        missing = state.missing
        silent = tuple(state.settled.silent_workers)
        num_enqueued = 0
        if missing and not silent:
            room = window - broker.num_waiting(queue_name(spec_digest)) if window else len(missing)
            # There is room for all that is added: the feed need not wait.
            feed = QueueFeed(run, broker, lease, state.settled, window=0)
            for row in islice(state.plan.rows_of(missing), min(max(room, 0), len(missing))):
                feed.add(row)
            feed.flush()
            num_enqueued = feed.num_enqueued
    num_left = len(missing) - num_enqueued
    return ReconcileOutcome(
        state.numbers(),
        num_enqueued,
        num_beyond_window=0 if silent else num_left,
        num_held_back=num_left if silent else 0,
        silent_workers=silent,
    )
