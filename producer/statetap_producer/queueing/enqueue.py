"""Fills the queue: one message for each prompt that is neither stored, dead nor queued."""

from collections.abc import Callable
from dataclasses import dataclass

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.feed import FeedProgress, QueueFeed
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.queueing.queue_scan import queued_prompts
from statetap_producer.queueing.settled import Settled
from statetap_producer.run.plan import Order, Plan
from statetap_producer.run.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class EnqueueOutcome:
    """What ``enqueue`` did with the run's prompts; their sum is what was planned."""

    num_enqueued: int
    num_stored: int
    num_dead: int
    #: Prompts that were waiting in the queue or held by workers already.
    num_queued_before: int


def enqueue(
    run: RunFolder,
    redis_url: str,
    *,
    window: int,
    order: Order = "plan",
    on_progress: Callable[[FeedProgress], None] = lambda _: None,
) -> EnqueueOutcome:
    """Publishes the pending prompts, and returns when the last of them is in the queue.

    Its memory does not grow with the plan. What is queued is looked at once, at the beginning; of
    what workers do meanwhile nothing comes back to the queue.

    Args:
        run: a planned run.
        redis_url: the broker; see ``Broker``.
        window: messages that may wait in the queue at a time, 0 for any number.
        order: of the prompts.
        on_progress: hears of every batch.

    Raises:
        MissingError: kinds ``redis-unreachable``, ``redis-password``, ``redis-full``,
            ``queue-taken``, ``worker-silent``; what was published stays in the queue, and
            enqueuing again goes on.
        StatetapError: what ``Broker``, ``Plan`` and ``Settled`` raise.
    """
    record = run.read_record()
    plan = Plan(run.plan_file, record.counts.num_planned)
    spec_digest = record.inputs.spec.digest
    num_stored = num_dead = 0
    with Broker(redis_url) as broker, QueueLease(broker, spec_digest, run.name) as lease:
        # Queue before files: see queued_prompts.
        queued = queued_prompts(broker, spec_digest, run.name)
        settled = Settled(run, broker)
        settled.wait_for_announcements()
        settled.refuse_silent_workers()
        feed = QueueFeed(run, broker, lease, settled, window, on_progress)
        for row in plan.rows(order):
            is_stored, is_dead = settled.is_stored(row.key), settled.is_dead(row.key)
            if is_stored or is_dead or row.key in queued:
                num_stored += is_stored
                num_dead += is_dead
                feed.skip()
            else:
                feed.add(row)
        feed.flush()
    num_queued = feed.num_skipped - num_stored - num_dead
    return EnqueueOutcome(feed.num_enqueued, num_stored, num_dead, num_queued)
