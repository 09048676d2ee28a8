"""LeaseHolder: who holds the lease of a speaker, and whether that one is gone."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A worker by its name and host, and by the process that is the parent of its children.

    A child that takes the place of a killed one has the same parent, and goes on at once.
    """

    worker: str
    host: str
    pid: int
    #: When that process began, in ticks since the host did: pids are used again.
    started: str

    @classmethod
    def here(cls, worker: str, host: str) -> "LeaseHolder":
        """The worker that this child belongs to."""
        pid = os.getppid()
        return cls(worker, host, pid, _started(pid))

    def encode(self) -> bytes:
        """The value of the lease."""
        return f"{self.worker}@{self.host}:{self.pid}:{self.started}".encode()

    def succeeds(self, held: bytes) -> bool:
        """Whether a lease is that of an earlier process of this worker, which has ended.

        A name is one worker's on all that share a folder, so the earlier one ran on this host.
        """
        owner, _, process = held.decode(errors="replace").rpartition("@")
        host, *numbers = process.split(":")
        if (owner, host) != (self.worker, self.host) or len(numbers) != len(("pid", "started")):
            return False
        pid, started = numbers
        return pid.isdecimal() and _started(int(pid)) != started


def _started(pid: int) -> str:
    """Empty where no such process runs."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold anything; the 22nd field is the 20th after it.
    state, *fields = status.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]
