"""Gives dead letters another chance: pardons them durably, then enqueues their prompts."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from statetap_contract import UsageError

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.feed import FeedProgress, QueueFeed
from statetap_producer.queueing.queue_lease import QueueLease
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder

#: Keys that a sentence lists at most.
_MOST_KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class RerunOutcome:
    """What ``rerun`` did."""

    #: Dead letters that count as pending from now on, by the reason they had.
    pardoned: dict[str, int]
    #: Those of them that were enqueued; the others were queued already.
    num_enqueued: int
    #: Dead letters that were not chosen.
    num_dead: int


def rerun(
    run: RunFolder,
    redis_url: str,
    *,
    reasons: Collection[str] = (),
    samples: Collection[str] = (),
    window: int,
    on_progress: Callable[[FeedProgress], None] = lambda _: None,
) -> RerunOutcome:
    """Pardons dead letters and enqueues their prompts.

    Once they are pardoned they are pending, whatever happens to Redis: what could not be enqueued
    is found by ``enqueue`` and ``reconcile``.

    Args:
        run: a planned run.
        redis_url: the broker; see ``Broker``.
        reasons: kinds of dead letters that are meant.
        samples: keys of dead letters that are meant; without either of them all are.
        window: messages that may wait in the queue, 0 for any number.
        on_progress: hears of every batch.

    Raises:
        UsageError: kind ``reason-unknown`` or ``sample-not-dead``.
        MissingError: kind ``queue-taken``, ``worker-silent``, ``reruns-unwritable`` and those of
            ``Broker``.
        StatetapError: what ``RunState`` raises.
    """
    spec_digest = run.read_record().inputs.spec.digest
    with Broker(redis_url) as broker, QueueLease(broker, spec_digest, run.name) as lease:
        state = RunState(run, broker)
        state.wait_for_announcements()
        settled = state.settled
        settled.refuse_silent_workers()
        chosen = _chosen(state, reasons, samples)
        kinds = Counter(settled.letters[key].kind for key in chosen)
        num_dead = len(state.dead) - len(chosen)
        if chosen:
            settled.pardons.add({key: settled.num_letters(key) for key in sorted(chosen)})
            settled.refresh()
        feed = QueueFeed(run, broker, lease, settled, window, on_progress)
        if wanted := {key for key in chosen if state.queued is None or key not in state.queued}:
            for row in state.plan.rows_of(wanted):
                feed.add(row)
        feed.flush()
    return RerunOutcome(dict(kinds.most_common()), feed.num_enqueued, num_dead)


def _chosen(state: RunState, reasons: Collection[str], samples: Collection[str]) -> set[str]:
    letters = {key: state.settled.letters[key] for key in state.dead}
    kinds = {letter.kind for letter in letters.values()}
    if unknown := sorted(set(reasons) - kinds):
        raise UsageError(
            "reason-unknown",
            f"no sample is dead for the reason {unknown[0]!r}; reasons are: "
            f"{', '.join(sorted(kinds)) or 'none, for no sample is dead'}",
        )
    if alive := sorted(set(samples) - letters.keys()):
        listed = sorted(letters)[:_MOST_KEYS]
        more = f" and {len(letters) - len(listed):,} more" if len(letters) > len(listed) else ""
        raise UsageError(
            "sample-not-dead",
            f"sample {alive[0]!r} is not dead in this run; dead are: "
            f"{', '.join(listed) or 'none'}{more}",
        )
    if not reasons and not samples:
        return set(letters)
    return {key for key, letter in letters.items() if key in samples or letter.kind in reasons}
