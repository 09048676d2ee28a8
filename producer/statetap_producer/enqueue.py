"""Fills the queue: one Celery message for each prompt that is neither stored nor dead."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from celery import Celery
from celery.exceptions import OperationalError
from redis import RedisError
from statetap_contract import TASK_NAME, Job, celery_settings, queue_name

from statetap_producer.broker import Broker, redis_error
from statetap_producer.run_folder import RunFolder
from statetap_producer.run_state import RunState

#: Messages sent to Redis in one go.
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class EnqueueOutcome:
    """What ``enqueue`` did with the run's prompts."""

    num_enqueued: int
    num_stored: int
    num_dead: int
    #: Messages that were already waiting in the queue.
    num_queued_before: int


def enqueue(run: RunFolder, redis_url: str, on_progress: Callable[[int], None]) -> EnqueueOutcome:
    """Publishes the pending prompts.

    Messages that are already queued are not looked at: a prompt that is queued twice is stored
    once.

    Args:
        run: a planned run.
        redis_url: the broker; see ``Broker``.
        on_progress: called with the number of messages published so far.

    Raises:
        MissingError: kinds ``redis-unreachable``, ``redis-password``, ``redis-full``; part of
            the messages may be in the queue, and enqueuing again does no harm.
        StatetapError: what ``Broker`` and ``RunState`` raise.
    """
    broker = Broker(redis_url)
    state = RunState(run)
    settled = state.stored | state.dead
    spec_digest = state.spec.digest
    inputs = run.read_record().inputs
    text_digests = inputs.tokenizer_digest, inputs.template_digest
    queue = queue_name(spec_digest)
    num_queued_before = broker.counts(queue).num_queued
    num_enqueued = 0
    app = Celery(set_as_current=False)
    app.conf.update(celery_settings(redis_url))
    try:
        with app.producer_pool.acquire() as producer, producer.batch(_BATCH):
            for row in state.plan.rows():
                if row.key in settled:
                    continue
                job = Job(row.key, run.name, spec_digest, row.prompt, *text_digests)
                app.send_task(
                    TASK_NAME,
                    args=[job.to_message()],
                    task_id=job.key,
                    queue=queue,
                    # What Flower shows; the message itself is packed.
                    argsrepr=f"{job.key}, {row.prompt.num_tokens} tokens, run {run.name}",
                    kwargsrepr="",
                    producer=producer,
                    retry=False,
                )
                num_enqueued += 1
                on_progress(num_enqueued)
    except (OperationalError, RedisError) as error:
        raise redis_error(broker.address, error) from error
    finally:
        app.close()
    return EnqueueOutcome(num_enqueued, len(state.stored), len(state.dead), num_queued_before)
