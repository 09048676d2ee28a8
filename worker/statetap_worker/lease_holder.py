"""LeaseHolder: who holds a lease in Redis, and whether that one is gone."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """A worker by its name and host, and one process of it."""

    worker: str
    #: With its namespace of pids: containers may share a host's name and not see one another.
    host: str
    pid: int
    #: When that process began, in ticks since the host did: pids are used again.
    started: str

    @classmethod
    def of(cls, worker: str, host: str, pid: int) -> "LeaseHolder":
        """A process on this host."""
        return cls(worker, f"{host}/{_pid_namespace()}", pid, _started(pid))

    def encode(self) -> bytes:
        """The value of the lease."""
        return f"{self.worker}@{self.host}:{self.pid}:{self.started}".encode()

    def succeeds(self, held: bytes) -> bool:
        """Whether a lease is that of an earlier process of this worker, which has ended.

        A name is one worker's on all that share a folder, so the earlier one ran on this host.
        """
        return held.rpartition(b"@")[0].decode(errors="replace") == self.worker and (
            self.outlives(held)
        )

    def outlives(self, held: bytes) -> bool:
        """Whether a lease is that of a process of this host, which has ended."""
        host, *numbers = held.decode(errors="replace").rpartition("@")[2].split(":")
        if host != self.host or len(numbers) != len(("pid", "started")):
            return False
        pid, started = numbers
        return pid.isdecimal() and _started(int(pid)) != started


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _started(pid: int) -> str:
    """Empty where no such process runs."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # The name in parentheses may hold anything; the 22nd field is the 20th after it.
    state, *fields = status.rpartition(")")[2].split()
    return "" if state == "Z" else fields[18]
