"""What became of a run's prompts. Truth is on disk: plan, shards, ledger."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from statetap_contract import CaptureSpec
from statetap_store import RunScanner

from statetap_producer.ledger import read_ledger
from statetap_producer.plan import Plan
from statetap_producer.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class RunNumbers:
    """``planned = stored + dead + pending``, and the sizes of what is stored."""

    run: str
    planned: int
    stored: int
    dead: int
    pending: int
    planned_tokens: int
    stored_tokens: int
    stored_bytes: int
    dead_by_kind: dict[str, int]
    #: Why shards cannot be read, one sentence each; their samples count as pending.
    unreadable_shards: list[str]


class RunState:
    """A run's prompts, each planned and at any time either stored, dead or pending.

    Raises:
        MissingError, UsageError, CheckError: what reading run record, plan, shards and ledger
            raises.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._record = run.read_record()
        self.plan = Plan(run.plan_file, self._record.counts.num_planned)
        self.spec = self._record.inputs.spec
        self._scanner = RunScanner(run.shards)
        #: Keys of all prompts, and of those that are samples and dead letters. A stored sample is
        #: not dead, whatever the ledger says of an earlier attempt.
        self.planned = self.plan.keys()
        self.stored: set[str] = set()
        self.dead: set[str] = set()
        self._dead_by_kind: Counter[str] = Counter()
        self.refresh()

    def refresh(self) -> None:
        """Looks at shards and ledger again."""
        # The ledger first: a sample that is stored in between is found stored, not pending.
        letters = read_ledger(self._run.ledger)
        self._scanner.refresh()
        self.stored = self.planned & self._scanner.keys
        self.dead = (self.planned & letters.keys()) - self.stored
        self._dead_by_kind = Counter(letters[key].kind for key in self.dead)

    @property
    def unplanned(self) -> set[str]:
        """Keys of samples that are in the run's shards and not in its plan."""
        return set(self._scanner.keys - self.planned)

    @property
    def shard_specs(self) -> dict[Path, CaptureSpec]:
        """The capture spec of each shard that can be read."""
        return self._scanner.specs

    def numbers(self) -> RunNumbers:
        """The counts as of the last refresh."""
        return RunNumbers(
            run=self._run.name,
            planned=len(self.planned),
            stored=len(self.stored),
            dead=len(self.dead),
            pending=len(self.planned) - len(self.stored) - len(self.dead),
            planned_tokens=self._record.counts.num_tokens,
            stored_tokens=self._scanner.num_tokens,
            stored_bytes=self._scanner.num_bytes,
            dead_by_kind=dict(self._dead_by_kind.most_common()),
            unreadable_shards=[error.message for error in self._scanner.unreadable.values()],
        )
