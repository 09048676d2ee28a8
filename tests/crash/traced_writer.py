"""A writer to be traced.

Usage, in the folder ``tests``:

    python -m crash.traced_writer write ROOT SEED NUM_SAMPLES FAULT
    python -m crash.traced_writer recover ROOT FAULT

``write`` delivers the samples from 0 on in many sessions, each a process of its own. A session
recovers what the one before left, delivers some samples again, and ends in order, without a
commit, or killed after some call. At last everything is sealed.

``recover`` reads lines of two numbers, FIRST and END. For each it opens whatever lies below ROOT
now, delivers these samples, and answers ``done`` or with an error.

FAULT is ``none`` or names a fault that is built into the store.
"""

import ctypes
import os
import random
import stat
import sys
import traceback
from pathlib import Path
from typing import NoReturn
from unittest import mock

from .deliver import Deliverer, last_acknowledged


def build_in(fault: str) -> None:
    """Builds a fault into the store that no kill brings to light, only a power loss.

    Raises:
        AttributeError: the store has no such function.
    """
    fsync = os.fsync

    def fsync_but_folders(fd: int) -> None:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            fsync(fd)

    name, function = {
        "no-fdatasync": ("os.fdatasync", lambda _: None),
        "no-folder-sync": ("os.fsync", fsync_but_folders),
        "no-payload-check": ("statetap_store.recover.is_payload_intact", lambda *_: True),
    }[fault]
    mock.patch(name, function).start()


def write(root: Path, seed: int, num_samples: int) -> None:
    generator = random.Random(seed)
    first = 0
    while first < num_samples:
        session_seed = generator.getrandbits(32)
        pid = os.fork()
        if pid == 0:
            session(root, random.Random(session_seed), first, num_samples)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
            raise SystemExit(f"the session from sample {first} on failed")
        first = 1 + last_acknowledged(root)
    deliverer = Deliverer(root)
    deliverer.shards.seal()
    deliverer.close()


def session(root: Path, generator: random.Random, first: int, end: int) -> NoReturn:
    """One process's work: some batches of samples from about ``first`` on, ``end`` at most."""
    try:
        ending = generator.choice(("in order", "without a commit", "killed", "killed"))
        if not (root / "shards").exists():
            kill_after(1, counted_from="M")
        elif ending == "killed":
            # Anywhere; while a shard is sealed and the next one made; before the cut or the new
            # name is durable.
            choices = (("\0", 300), ("T", 12), ("T", 1), ("L", 2))
            counted_from, most = generator.choice(choices)
            kill_after(generator.randint(1, most), counted_from)
        deliverer = Deliverer(root)
        # As after a lost acknowledgement, the last few are delivered again.
        start = max(0, first - generator.randrange(6))
        for _ in range(end if ending == "killed" else generator.randrange(1, 15)):
            stop = min(end, start + generator.choice((1, 1, 1, 2, 5, 12)))
            if start == stop:
                break
            known = [generator.randrange(start)] if start and generator.random() < 0.1 else []
            deliverer.deliver([*known, *range(start, stop)])
            start = stop
        if ending == "without a commit":
            deliverer.append(range(start, min(end, start + 4)))
        else:
            deliverer.close()
    except BaseException:  # noqa: BLE001  a fork must not go on with its parent's work
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def kill_after(num_calls: int, counted_from: str) -> None:
    """Has the shim kill this process after so many calls, from the next one of a kind on.

    Kinds are the shim's, and NUL stands for any.
    """
    shim = ctypes.CDLL(None)
    ctypes.c_char.in_dll(shim, "trace_counts_from").value = counted_from.encode()
    ctypes.c_int.in_dll(shim, "trace_calls_left").value = num_calls


def recover_on_request(root: Path) -> None:
    for line in sys.stdin:
        numbers = [*range(*map(int, line.split()))]
        try:
            deliverer = Deliverer(root)
            for batch in (numbers[:1], numbers[1:]):
                deliverer.deliver(batch)
            deliverer.close()
        except Exception as error:  # noqa: BLE001  whatever it is, it goes into the verdict
            answer = repr(error)
        else:
            answer = "done"
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[-1] != "none":
        build_in(sys.argv[-1])
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        recover_on_request(Path(sys.argv[2]))
