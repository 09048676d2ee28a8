"""Crashes of a traced writer at random calls, and the checks of what each leaves."""

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from .check import Checker, Findings
from .deliver import acknowledged_in
from .disk import PAGE_BYTES, Disk
from .real_files import write_image
from .trace import Call, Replay, Tracer

KINDS: Final = ("kill", "power")

_TESTS: Final = Path(__file__).parents[1]

#: Share of the crashes after which the recovery is struck by a second one.
_CRASHES_AGAIN: Final = 0.3

#: Calls that are rare and matter: half of the crashes come shortly before or after one of them.
_RARE: Final = frozenset({"create", "mkdir", "link", "unlink", "rename", "truncate"})
_AROUND: Final = range(-8, 5)


def run_writer(tracer: Tracer, seed: int, num_samples: int, fault: str) -> tuple[Call, ...]:
    """Has a writer deliver samples below the tracer's root; returns its calls.

    Args:
        tracer: its root is empty.
        seed: of what the writer does.
        num_samples: samples to deliver.
        fault: ``none`` or one that the traced writer knows to build into the store.

    Raises:
        RuntimeError: the calls do not explain every byte that is there now.
    """
    start = Replay.from_empty(tracer.root)
    arguments = ["write", str(tracer.root), str(seed), str(num_samples), fault]
    subprocess.run(_command(arguments), cwd=_TESTS, env=tracer.environment(), check=True)
    calls = tracer.take()
    start.check(calls, tracer.root)
    return calls


def _command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "crash.traced_writer", *arguments]


class Recoverer:
    """A traced process that opens what a crash left, as a worker would that is started again."""

    def __init__(self, tracer: Tracer, fault: str) -> None:
        self._tracer = tracer
        self._process = subprocess.Popen(
            _command(["recover", str(tracer.root), fault]),
            cwd=_TESTS,
            env=tracer.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def deliver(self, numbers: range) -> tuple[tuple[Call, ...], str]:
        """Opens the shards, delivers samples, closes.

        Returns:
            All calls, and ``done`` or the error.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{numbers.start} {numbers.stop}\n")
        process.stdin.flush()
        answer = process.stdout.readline().rstrip("\n")
        if not answer:
            raise RuntimeError(f"the recovering process ended with {process.wait()}")
        return self._tracer.take(), answer

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def acknowledged(calls: Iterable[Call]) -> set[int]:
    """Numbers of the samples that were said to be durable in these calls."""
    return {number for call in calls for number in acknowledged_in(call.data)}


@dataclass(slots=True)
class Verdict:
    """What came of the crashes of one kind."""

    seed: int
    kind: str
    #: In the writer's trace.
    num_calls: int
    num_states: int = 0
    #: States whose recovery was struck by a second crash.
    num_crashed_again: int = 0
    #: States that were not in order before their recovery.
    num_repaired: int = 0
    #: Files that cannot be read, or folders that cannot be opened.
    num_unreadable: int = 0
    #: Acknowledged samples that are gone.
    num_lost: int = 0
    #: Samples that are not what was delivered or are there twice, and all that verification finds.
    num_wrong: int = 0
    #: What was found, with the state's name.
    faults: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line of JSON, without the single faults."""
        counts = asdict(self)
        del counts["faults"]
        return json.dumps(counts)

    def __str__(self) -> str:
        return f"{self.num_unreadable} unreadable, {self.num_lost} lost, {self.num_wrong} wrong"

    def add(self, state: str, findings: Findings) -> None:
        self.num_unreadable += len(findings.unreadable)
        self.num_lost += len(findings.lost)
        self.num_wrong += len(findings.wrong)
        self.faults += [f"{state}: {finding}" for finding in findings.all()]


class Crashes:
    """Crashes of one traced run. A crash is known by the seed, its kind and its number.

    Args:
        tracer: its root is where states are laid out and recovered; what is there now is removed.
        seed: of the run and of the crashes.
        num_samples: samples of the run.
        fault: as for ``run_writer``.

    Raises:
        RuntimeError: the trace is not whole.
    """

    def __init__(self, tracer: Tracer, seed: int, num_samples: int, fault: str = "none") -> None:
        self._calls = run_writer(tracer, seed, num_samples, fault)
        self._root = tracer.root
        self._shards = tracer.root / "shards"
        self._checker = Checker()
        self._seed = seed
        self._recoverer = Recoverer(tracer, fault)

    def close(self) -> None:
        """Ends the recovering process."""
        self._recoverer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def play(self, kind: str, numbers: Iterable[int]) -> Verdict:
        """Lets each crash happen, has its state recovered, and checks the outcome."""
        verdict = Verdict(self._seed, kind, len(self._calls))
        generators = {n: random.Random(f"{self._seed} {kind} {n}") for n in numbers}
        points = {n: crash_point(self._calls, generators[n]) for n in generators}
        replay, acks, position = Replay.from_empty(self._root), set[int](), 0
        for number in sorted(points, key=points.__getitem__):
            passed = self._calls[position : points[number]]
            for call in passed:
                replay.apply(call)
            acks |= acknowledged(passed)
            position = points[number]
            disk = crash(kind, replay.copy(), self._calls[position:], generators[number])
            self._check(f"{kind}-{number}", disk, acks, generators[number], verdict)
        return verdict

    def _check(
        self, state: str, disk: Disk, acks: set[int], generator: random.Random, verdict: Verdict
    ) -> None:
        verdict.num_states += 1
        inodes = write_image(disk.image(), self._root)
        verdict.num_repaired += bool(self._checker.check(self._shards, set()).all())
        calls = self._recover(state, acks, generator, verdict)
        if generator.random() >= _CRASHES_AGAIN:
            return
        verdict.num_crashed_again += 1
        replay = Replay(disk, inodes)
        replay.copy().check(calls, self._root)
        point = crash_point(calls, generator)
        for call in calls[:point]:
            replay.apply(call)
        disk = crash(generator.choice(KINDS), replay, calls[point:], generator)
        write_image(disk.image(), self._root)
        acks = acks | acknowledged(calls[:point])
        self._recover(f"{state}, after a second crash", acks, generator, verdict)

    def _recover(
        self, state: str, acks: set[int], generator: random.Random, verdict: Verdict
    ) -> tuple[Call, ...]:
        """The state is recovered, the last samples are delivered again, and perhaps new ones."""
        last = max(acks, default=-1)
        redelivered = range(max(0, last - 3), last + 1 + generator.choice((0, 1, 13)))
        calls, answer = self._recoverer.deliver(redelivered)
        if answer == "done":
            findings = self._checker.check(self._shards, acks | set(redelivered))
        else:
            findings = Findings(unreadable=[answer])
        verdict.add(state, findings)
        return calls


def crash_point(calls: Sequence[Call], generator: random.Random) -> int:
    """How many calls happen before the crash."""
    rare = [index for index, call in enumerate(calls) if call.kind in _RARE]
    if not rare or generator.random() < 0.5:
        return generator.randrange(len(calls) + 1)
    point = generator.choice(rare) + generator.choice(_AROUND)
    return min(max(point, 0), len(calls))


def crash(kind: str, replay: Replay, coming: Sequence[Call], generator: random.Random) -> Disk:
    """What the next start finds. Of a write that was under way a part happened."""
    if coming and coming[0].kind == "write":
        num_bytes = len(coming[0].data)
        tear = generator.randrange(num_bytes + 1)
        if generator.random() < 0.5:
            tear -= (coming[0].offset + tear) % PAGE_BYTES
        replay.apply(coming[0].torn(max(0, tear)))
    if kind == "kill":
        return replay.disk
    return Disk.of(replay.disk.after_power_loss(generator))
