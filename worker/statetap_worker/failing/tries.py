"""Tries: how often each sample of a run was tried in vain, whatever ended the process that tried.

A message carries a count of its own, but a message can be lost, and nothing adds to the count of
one whose process or server is killed. What counts is on disk, a line for each failed try, in
``<run>/tries/<process>.jsonl``. Failures are rare, so the files are small and all are read.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from statetap_contract import FailedTry

from statetap_worker.durable_lines import LineTail, append_line

#: The process that had the sample in hand was killed.
WORKER_LOST: Final = "worker-lost"

#: The server went away with the sample in hand.
SERVER_LOST: Final = "server-lost"

LOSSES: Final = (WORKER_LOST, SERVER_LOST)


@dataclass(frozen=True, slots=True)
class TriedBefore:
    """The failed tries of one sample."""

    num_failed: int = 0
    #: Kinds of those that a process or a server did not survive.
    losses: tuple[str, ...] = ()


class Tries:
    """The failed tries of one run, in one process.

    Args:
        run: the run's folder.
        owner: name of this process, which no other has.
        server: URL of the server that is asked.
    """

    def __init__(self, run: Path, owner: str, server: str) -> None:
        self._folder = run / "tries"
        self._own = self._folder / f"{owner}.jsonl"
        self._server = server
        self._tails: dict[Path, LineTail] = {}
        #: By key and attempt.
        self._tried: dict[tuple[str, int], TriedBefore] = {}

    def add(self, key: str, attempt: int, kind: str) -> None:
        """Notes a failed try, durably.

        Raises:
            OSError: it cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        failed = FailedTry(key, attempt, kind, self._server, now)
        append_line(self._own, failed.to_json())

    def of(self, key: str, attempt: int) -> TriedBefore:
        """The failed tries of a sample, those of other processes included.

        Raises:
            OSError: they cannot be read.
        """
        self._read_new()
        return self._tried.get((key, attempt), TriedBefore())

    def _read_new(self) -> None:
        # Nearly always there is no such folder, which a ``stat`` tells.
        paths = sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []
        if not self._tails.keys() <= set(paths) or not all(map(self._has_read, paths)):
            # The run was made anew: what was counted is of another one.
            self._tails.clear()
            self._tried.clear()
            for path in paths:
                self._has_read(path)

    def _has_read(self, path: Path) -> bool:
        """Counts what is new in a file; False when it is another one than before."""
        records = self._tails.setdefault(path, LineTail(path)).read_new()
        for record in records or ():
            try:
                failed = FailedTry.from_json(record)
            except ValueError:
                continue
            before = self._tried.get((failed.key, failed.attempt), TriedBefore())
            loss = (failed.kind,) if failed.kind in LOSSES else ()
            self._tried[failed.key, failed.attempt] = TriedBefore(
                before.num_failed + 1, before.losses + loss
            )
        return records is not None
