"""What happens to the pipeline, and when: drawn once from a seed."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """One thing that happens; the value is how the report names it."""

    CHILD = "worker child killed"
    PARENT = "worker parent killed, children left alone"
    WORKER = "worker killed with its children"
    SERVER = "server killed"
    SERVER_PART = "server's scheduler or detokenizer killed"
    REDIS = "Redis killed"
    RECONCILE = "reconcile killed"
    STORM = "SIGTERM storm"
    FREEZE_CHILD = "worker child stopped and continued"
    FREEZE_REDIS = "Redis stopped and continued"
    FREEZE_QUEUE = "connections to Redis frozen"
    FREEZE_SERVER = "connections to the server frozen"
    CUT = "connections cut"
    DUPLICATES = "prompts queued twice"
    ENQUEUE = "enqueue again"
    STATUS = "status looked at"
    FLUSH = "FLUSHALL"


#: Of a hundred kills with -9, at least so many; the others are of children. A server takes as long
#: to start as hundreds of samples to extract.
_KILLS: Final = {
    Kind.CHILD: 1,
    Kind.PARENT: 10,
    Kind.WORKER: 8,
    Kind.SERVER: 3,
    Kind.SERVER_PART: 1,
    Kind.REDIS: 14,
    Kind.RECONCILE: 3,
}

#: Beside a hundred kills.
_OTHERS: Final = {
    Kind.STORM: 6,
    Kind.FREEZE_CHILD: 5,
    Kind.FREEZE_REDIS: 4,
    Kind.FREEZE_QUEUE: 4,
    Kind.FREEZE_SERVER: 5,
    Kind.CUT: 6,
    Kind.DUPLICATES: 8,
    Kind.ENQUEUE: 3,
    Kind.STATUS: 8,
}

#: Kinds that end a process with -9.
KILLS: Final = frozenset(_KILLS)

#: Seconds after which an event comes although nothing is stored: outages have kills in them too.
_PATIENCE_S: Final = (2.0, 6.0)


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and when it comes after the one before."""

    kind: Kind
    #: Samples to be stored in between, or seconds, whichever comes first.
    num_samples: int
    patience_s: float
    #: What the event draws its own particulars from.
    seed: int


def make_schedule(num_kills: int, num_samples: int, seed: int) -> list[Event]:
    """Seven kills or more, each kind of event at least once, one FLUSHALL about the middle.

    The gaps add up to nine tenths of ``num_samples``, so that the last events find work to disturb.
    """
    generator = random.Random(seed)
    kinds = [kind for kind in _KILLS for _ in range(max(1, num_kills * _KILLS[kind] // 100))]
    kinds += [Kind.CHILD] * (num_kills - len(kinds))
    kinds += [kind for kind in _OTHERS for _ in range(max(1, num_kills * _OTHERS[kind] // 100))]
    generator.shuffle(kinds)
    middle = len(kinds) // 2
    kinds.insert(generator.randint(middle - middle // 4, middle + middle // 4), Kind.FLUSH)
    gaps = [generator.random() for _ in kinds]
    scale = 0.9 * num_samples / sum(gaps)
    return [
        Event(kind, round(gap * scale), generator.uniform(*_PATIENCE_S), generator.getrandbits(32))
        for kind, gap in zip(kinds, gaps, strict=True)
    ]
