"""Waits until workers have announced what they had acknowledged."""

import time
import uuid
from typing import Final

from statetap_producer.queueing.announcements import Announcements
from statetap_producer.queueing.broker import Broker

#: Seconds in which every worker that runs makes itself known to a Redis that knows nothing: the
#: longest wait after a failure, a look, and some.
KNOWN_AFTER_S: Final = 7.0

#: Seconds to wait for one that is at work and has much to announce.
_PATIENCE_S: Final = 30.0

#: Seconds between two looks.
_PAUSE_S: Final = 0.25


def hear_workers(announcements: Announcements, broker: Broker, run: str) -> frozenset[str]:
    """Waits until it is known what workers held when this was called; to be called after a look.

    A worker that runs announces all of that within two of its looks. Which workers there are is
    known from Redis, and from what the run remembers. Redis may have forgotten them: then it has
    also lost the mark that was left there when prompts were queued last, and workers that nobody
    here ever saw have time to make themselves known.

    Args:
        announcements: refreshed before, and to be refreshed after.
        broker: where workers announce.
        run: name of the run.

    Returns:
        Workers that are at work and have not announced all, as people are told of them.

    Raises:
        MissingError: kinds of ``Broker``.
    """
    key = f"statetap.mark.{run}"
    known = announcements.known
    begun_s = time.monotonic()
    with broker.asking():
        seconds, microseconds = broker.client.time()
        has_forgotten = known.mark != "" and broker.client.get(key) != known.mark.encode()
    since_us = 1_000_000 * seconds + microseconds
    while True:
        unheard = announcements.unheard(since_us)
        waited_s = time.monotonic() - begun_s
        is_early = waited_s < KNOWN_AFTER_S and (has_forgotten or bool(unheard.absent))
        if not is_early and (not unheard.alive or waited_s >= _PATIENCE_S):
            break
        time.sleep(_PAUSE_S)
    mark = uuid.uuid4().hex[:8]
    known.set_mark(mark)
    with broker.asking():
        broker.client.set(key, mark)
    return frozenset(worker.address for worker in unheard.alive)
