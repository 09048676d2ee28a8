"""Writers that are killed, one after another, on one growing set of shards.

Usage, in the folder ``tests``: ``python -m crash.killed_writers ROOT NUM_KILLS SEED``. Prints as
JSON how many were killed in each phase of their work.

Each writer is a fork of this process, which has everything imported, so a kill costs little.
"""

import json
import mmap
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Final, NoReturn

from statetap_store import ShardSet

from .deliver import Deliverer, last_acknowledged

#: What a writer does at the moment, in one byte of memory that it shares with its killer.
PHASES: Final = ("opening", "appending", "rolling over")
_OPENING, _APPENDING, _ROLLING_OVER = range(3)

#: Room for about 300 samples. To open a set of many shards takes time, for every writer.
_SHARD_BYTES: Final = 256 * 1024

_NOTE: Final = mmap.mmap(-1, 1)

#: A writer that takes longer than this to get somewhere hangs.
_PATIENCE_S: Final = 60


class NotingSet(ShardSet):
    """Notes when a full shard is sealed and the next one made."""

    def seal(self) -> None:
        _NOTE[0] = _ROLLING_OVER
        super().seal()

    def append(self, *sample: Any, **how: Any) -> bool:
        is_new = super().append(*sample, **how)
        _NOTE[0] = _APPENDING
        return is_new


def write_endlessly(root: Path, first: int, num_samples: int) -> NoReturn:
    """Delivers batches of ``num_samples`` from number ``first`` on until it is killed."""
    try:
        deliverer = Deliverer(root, NotingSet, _SHARD_BYTES)
        for start in count(first, num_samples):
            deliverer.deliver([*range(start, start + num_samples)])
    except BaseException:  # noqa: BLE001  a fork must not go on with its parent's work
        traceback.print_exc()
    os._exit(1)


def kill_in(phase: int, pid: int, delay_s: float) -> int:
    """Kills a writer some time after it got to a phase; returns the one that it was really in."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while _NOTE[0] != phase:
        if time.monotonic() > deadline_s or os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            os.kill(pid, signal.SIGKILL)
            raise SystemExit(f"a writer failed or hangs before it was {PHASES[phase]}")
        time.sleep(0.0002)
    time.sleep(delay_s)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit("a writer failed")
    return _NOTE[0]


def main(root: Path, num_kills: int, seed: int) -> None:
    generator = random.Random(seed)
    killed_in: Counter[int] = Counter()
    for _ in range(num_kills):
        [phase] = generator.choices((_OPENING, _APPENDING, _ROLLING_OVER), (4, 7, 1))
        # As after a lost acknowledgement, the last few are delivered again.
        first = max(0, last_acknowledged(root) - 5)
        num_samples = generator.choice((1, 1, 4))
        _NOTE[0] = _OPENING
        pid = os.fork()
        if pid == 0:
            write_endlessly(root, first, num_samples)
        killed_in[kill_in(phase, pid, generator.uniform(0, 0.01))] += 1
    sys.stdout.write(json.dumps({PHASES[phase]: killed_in[phase] for phase in sorted(killed_in)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
