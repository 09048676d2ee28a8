"""One long run through the commands that a person types, watched while it goes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from statetap_contract.transport import TAKEN_PATTERN
from statetap_local.service import Service
from statetap_local.services import LocalRedis
from statetap_store import RunScanner

from .soak_prompts import stored_rows

#: Seconds without a new sample after which a run has failed.
_PATIENCE_S: Final = 300.0


class Soak:
    """A run in a folder of its own.

    Args:
        folder: for the run and for logs.
        redis: of its queue.
        num_samples: prompts that will be planned.
    """

    def __init__(self, folder: Path, redis: LocalRedis, num_samples: int) -> None:
        self.run = folder / "runs" / "soak"
        self.run.parent.mkdir()
        self.shards = self.run / "shards"
        self._log = folder / "enqueue.log"
        self._redis = redis
        self._environment = {"STATETAP_REDIS": redis.url}
        self.num_samples = num_samples
        #: What is wrong, a sentence each.
        self.faults: list[str] = []
        #: How often the account was looked at.
        self.num_looks = 0
        #: Most messages that the worker was seen to hold.
        self.most_in_flight = 0

    def expect(self, what: str, found: object, expected: object) -> None:
        """Notes a fault where the two differ."""
        if found != expected:
            self.faults.append(f"{what}: {found}, not {expected}")

    def command(self, *arguments: object) -> Any:
        """What a command says with --json; one whose check fails is a fault."""
        ended = subprocess.run(
            [*_line(*arguments), "--json"],
            env=os.environ | self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        # A check that fails prints its verdict all the same.
        assert ended.returncode in (0, 1), f"{ended.stderr}; before that: {self.faults}"
        self.expect(f"exit code of {arguments[0]}", ended.returncode, 0)
        return json.loads(ended.stdout)

    def enqueue(self) -> Service:
        """Fills the queue in the background."""
        line = _line("enqueue", "--run", self.run)
        return Service("enqueue", line, self._log, self._environment)

    def wait_for(self, num_samples: int, worker: Service) -> bool:
        """Waits until so many are stored; False when none came for too long."""
        scanner = RunScanner(self.shards)
        num_seen, seen_s = -1, time.monotonic()
        while num_seen < num_samples:
            self._look_at_flight()
            scanner.refresh()
            if scanner.num_samples > num_seen:
                num_seen, seen_s = scanner.num_samples, time.monotonic()
            elif not worker.is_running or time.monotonic() - seen_s > _PATIENCE_S:
                self.faults.append(f"no sample after the first {num_seen:,}; see {worker.log}")
                return False
            time.sleep(0.5)  # between two looks
        return True

    def look(self) -> None:
        """Holds what ``status`` says against plan, index rows and ledgers, while samples come."""
        at_least = len(stored_rows(self.shards).keys)
        numbers: dict[str, Any] = self.command("status", "--run", self.run)
        at_most = len(stored_rows(self.shards).keys)
        planned, stored, dead, pending = (
            numbers[name] for name in ("planned", "stored", "dead", "pending")
        )
        self.expect("planned", planned, self.num_samples)
        self.expect("stored + dead + pending", stored + dead + pending, planned)
        places = numbers["queued"] + numbers["in_flight"] + numbers["missing"]
        self.expect("queued + in flight + missing", places, pending)
        self.expect("dead, and lines of ledgers", (dead, self._num_letters()), (0, 0))
        if not at_least <= stored <= at_most:
            self.faults.append(f"stored: {stored}, not from {at_least} to {at_most}")
        self.num_looks += 1

    def _look_at_flight(self) -> None:
        # ``status`` counts what is pending still when it comes to look into the shards.
        with self._redis.client() as client:
            names = client.scan_iter(match=TAKEN_PATTERN, count=1000, _type="hash")
            self.most_in_flight = max(self.most_in_flight, sum(map(client.hlen, names)))

    def _num_letters(self) -> int:
        ledgers = (self.run / "ledger").glob("*.jsonl")
        return sum(len(ledger.read_text().splitlines()) for ledger in ledgers)


def _line(*arguments: object) -> list[str]:
    return [str(Path(sys.executable).parent / "statetap"), *map(str, arguments)]
