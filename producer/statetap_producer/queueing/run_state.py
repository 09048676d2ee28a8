"""What became of a run's prompts. Truth is on disk: plan, shards, ledgers, pardons."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from statetap_contract import CaptureSpec

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.queue_scan import QueuedPrompts, queued_prompts
from statetap_producer.queueing.settled import Settled
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """``planned = stored + dead + pending``, and the sizes of what is stored.

    With Redis also ``pending = queued + in_flight + missing``; without it these three are None.
    """

    run: str
    planned: int
    stored: int
    dead: int
    pending: int
    #: Prompts whose messages wait in the queue, are held by workers, are nowhere.
    queued: int | None
    in_flight: int | None
    missing: int | None
    planned_tokens: int
    stored_tokens: int
    stored_bytes: int
    #: Dead letters by reason, the most frequent first.
    dead_by_kind: dict[str, int]
    #: Dead letters by the URL of the server that was asked last, likewise.
    dead_by_server: dict[str, int]
    #: Workers that may hold samples of which nothing is known here.
    silent_workers: list[str]
    #: Why shards cannot be read, one sentence each; their samples count as pending.
    unreadable_shards: list[str]


class RunState:
    """A run's prompts, each planned and at any time either stored, dead or pending.

    Args:
        run: a planned run.
        broker: gives what is queued, and what workers announce; None looks at the disk alone.

    Raises:
        MissingError, UsageError, CheckError: what reading run record, plan, shards, ledgers and
            Redis raises.
    """

    def __init__(self, run: RunFolder, broker: Broker | None = None) -> None:
        self._run = run
        self._record = run.read_record()
        self._broker = broker
        self.plan = Plan(run.plan_file, self._record.counts.num_planned)
        self.spec = self._record.inputs.spec
        #: Bytes of a shard that each token takes.
        self.sample_bytes = self._record.sample_bytes
        #: Keys of all prompts, and of those that are samples and dead letters. A stored sample is
        #: not dead, whatever the ledger says of an earlier attempt.
        self.planned = self.plan.keys()
        self.stored: set[str] = set()
        self.dead: set[str] = set()
        self.queued: QueuedPrompts | None = None
        # The queue before the files: see queued_prompts.
        self.look_at_queue()
        self.settled = Settled(run, broker)
        self._divide()

    def refresh(self) -> None:
        """Looks at shards, ledgers and announcements again."""
        self.settled.refresh()
        self._divide()

    def wait_for_announcements(self) -> None:
        """See ``Settled.wait_for_announcements``."""
        self.settled.wait_for_announcements()
        self._divide()

    def give_up(self, workers: Collection[str]) -> None:
        """See ``Settled.give_up``."""
        self.settled.give_up(workers)
        self._divide()

    def look_at_queue(self) -> None:
        """Looks at the queue again; to be followed by ``refresh``. Reads all of its messages."""
        if self._broker is not None:
            self.queued = queued_prompts(self._broker, self.spec.digest, self._run.name)

    def _divide(self) -> None:
        settled = self.settled
        stored = self.planned & settled.scanner.keys
        if settled.announcements is not None:
            stored |= self.planned & settled.announcements.keys
        self.stored = stored
        self.dead = (self.planned & settled.letters.keys()) - self.stored

    @property
    def pending(self) -> set[str]:
        """Keys of the prompts that are neither stored nor dead."""
        return self.planned - self.stored - self.dead

    @property
    def missing(self) -> set[str]:
        """Keys of pending prompts that are not queued either, as far as the queue can be seen."""
        if self.queued is None:
            return self.pending
        return {key for key in self.pending if key not in self.queued}

    @property
    def unplanned(self) -> set[str]:
        """Keys of samples that are in the run's shards and not in its plan."""
        return set(self.settled.scanner.keys - self.planned)

    @property
    def shard_specs(self) -> dict[Path, CaptureSpec]:
        """The capture spec of each shard that can be read."""
        return self.settled.scanner.specs

    def numbers(self) -> RunNumbers:
        """The counts as of the last look."""
        settled = self.settled
        letters = [settled.letters[key] for key in self.dead]
        scanner, announced = settled.scanner, settled.announcements
        num_pending = len(self.planned) - len(self.stored) - len(self.dead)
        num_queued, num_taken = self._places()
        is_seen = self.queued is not None
        return RunNumbers(
            run=self._run.name,
            planned=len(self.planned),
            stored=len(self.stored),
            dead=len(self.dead),
            pending=num_pending,
            queued=num_queued if is_seen else None,
            in_flight=num_taken if is_seen else None,
            missing=num_pending - num_queued - num_taken if is_seen else None,
            planned_tokens=self._record.counts.num_tokens,
            stored_tokens=scanner.num_tokens + (announced.num_tokens if announced else 0),
            stored_bytes=scanner.num_bytes + (announced.num_bytes if announced else 0),
            dead_by_kind=dict(Counter(letter.kind for letter in letters).most_common()),
            dead_by_server=dict(Counter(letter.server for letter in letters).most_common()),
            silent_workers=settled.silent_workers,
            unreadable_shards=[error.message for error in scanner.unreadable.values()],
        )

    def _places(self) -> tuple[int, int]:
        """Pending prompts that wait in the queue, and that workers hold; each counts once."""
        if self.queued is None:
            return 0, 0
        taken = self._num_pending_in(self.queued.taken)
        return self._num_pending_in(self.queued.waiting - self.queued.taken), taken

    def _num_pending_in(self, keys: frozenset[bytes]) -> int:
        names = map(bytes.hex, keys)
        return sum(
            key in self.planned and key not in self.stored and key not in self.dead for key in names
        )
