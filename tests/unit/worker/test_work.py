"""From a message to its ending, with a process that does as told."""

from dataclasses import dataclass, field
from typing import cast

import pytest
from statetap_contract import (
    Job,
    MismatchError,
    MissingError,
    RejectError,
    StatetapError,
    StopError,
    TransientError,
)
from statetap_worker.failing.recall import Recalled
from statetap_worker.failing.tries import TriedBefore
from statetap_worker.pipeline import Outcome
from statetap_worker.process import WorkerProcess
from statetap_worker.work import Dead, Done, Ending, PutBack, TryAgain, work_off

from .conftest import JOB

OUTCOME = Outcome(JOB.key, JOB.prompt.num_tokens, True, 3.0, 2.0, 1.0)
UNTRIED = TriedBefore()
MISMATCH = MismatchError("dump-checksum", "m")
REFUSED = RejectError("request-refused", "m")
AWAY = TransientError("server-unreachable", "m")
LOST = TransientError("server-lost", "m")
FULL = StopError("disk-full", "m")


@dataclass
class StubMetrics:
    """Each call, in order."""

    calls: list[tuple[str, object]] = field(default_factory=list)

    def stored(self, outcome: Outcome) -> None:
        self.calls.append(("stored", outcome.key))

    def retried(self, kind: str) -> None:
        self.calls.append(("retried", kind))

    def waited(self, kind: str) -> None:
        self.calls.append(("waited", kind))


@dataclass
class StubProcess:
    """What a process is asked to do, and what it answers."""

    #: What becomes of the prompt.
    answer: Outcome | BaseException = OUTCOME
    before: TriedBefore = UNTRIED
    has_sample: bool = False
    #: What becomes of the wait for the server.
    outage_ends_with: BaseException | None = None
    is_ledger_broken: bool = False

    asked: list[tuple[str, bool]] = field(default_factory=list)
    noted: list[tuple[str, str]] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    given_up: list[tuple[str, str, str, int]] = field(default_factory=list)
    metrics: StubMetrics = field(default_factory=StubMetrics)

    def extract(self, job: Job, *, is_suspect: bool) -> Outcome:
        self.asked.append((job.key, is_suspect))
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    def is_stored(self, _job: Job) -> bool:
        return self.has_sample

    def tried_before(self, _job: Job) -> TriedBefore:
        return self.before

    def note_failure(self, job: Job, kind: str) -> None:
        self.noted.append((job.key, kind))

    def wait_for_server(self, at_least_s: float) -> None:
        self.waits_s.append(at_least_s)
        if self.outage_ends_with is not None:
            raise self.outage_ends_with

    def give_up(self, run: str, key: str, error: StatetapError, attempts: int) -> None:
        if self.is_ledger_broken:
            raise OSError(28, "No space left on device")
        self.given_up.append((run, key, error.kind, attempts))


def ending(process: StubProcess, num_retries: int = 0, message: object = None) -> Ending:
    message = JOB.to_message() if message is None else message
    return work_off(cast(WorkerProcess, process), message, num_retries)


def test_a_stored_sample_is_done() -> None:
    """The result says which try it was: the third, after two that failed."""
    process = StubProcess(before=TriedBefore(2))
    assert ending(process) == Done(OUTCOME.to_json() | {"attempt": 3})
    assert process.asked == [(JOB.key, False)]
    assert process.metrics.calls == [("stored", JOB.key)]
    assert (process.noted, process.given_up) == ([], [])


def test_a_mismatch_is_counted_and_tried_again() -> None:
    """After 4 seconds, where it is the third."""
    process = StubProcess(MISMATCH, TriedBefore(2))
    assert ending(process) == TryAgain(MISMATCH, 4.0)
    assert process.noted == [(JOB.key, "dump-checksum")]
    assert process.metrics.calls == [("retried", "dump-checksum")]
    assert process.given_up == []


def test_the_sixth_mismatch_is_the_last() -> None:
    """It is noted too, and the letter counts it."""
    process = StubProcess(MISMATCH, TriedBefore(5))
    assert ending(process) == Dead(MISMATCH)
    assert process.noted == [(JOB.key, "dump-checksum")]
    assert process.given_up == [("a-run", JOB.key, "dump-checksum", 6)]


def test_a_refused_prompt_is_dead_at_once() -> None:
    """Nothing is noted: there is no next try that it would count for."""
    process = StubProcess(REFUSED)
    assert ending(process) == Dead(REFUSED)
    assert process.given_up == [("a-run", JOB.key, "request-refused", 1)]
    assert process.noted == []


def test_a_server_that_is_away_is_waited_for() -> None:
    """The message goes back as it is, and no try is counted."""
    process = StubProcess(AWAY, TriedBefore(5))
    assert ending(process) == PutBack("m")
    assert process.waits_s == [2.0]
    assert process.metrics.calls == [("waited", "server-unreachable")]
    assert (process.noted, process.given_up) == ([], [])


def test_a_server_that_was_lost_is_counted_and_waited_for() -> None:
    """The count goes along with the message: another disk knows nothing of this one's."""
    process = StubProcess(LOST)
    assert ending(process) == TryAgain(LOST, 0.0)
    assert process.waits_s == [2.0]
    assert process.noted == [(JOB.key, "server-lost")]


def test_a_server_that_does_not_come_back_stops_the_worker() -> None:
    """With the reason why it is not there; the message goes back."""
    gone = MissingError("server-unreachable", "no SGLang server there")
    process = StubProcess(AWAY, outage_ends_with=gone)
    assert ending(process) == PutBack("no SGLang server there", stop=gone)


def test_what_is_fatal_to_the_worker_stops_it() -> None:
    """And counts against no prompt, however often."""
    process = StubProcess(FULL, TriedBefore(5))
    assert ending(process) == PutBack("m", stop=FULL)
    assert (process.noted, process.given_up) == ([], [])


@pytest.mark.parametrize("stub", [{"answer": Recalled()}, {"outage_ends_with": Recalled()}])
def test_a_recalled_prompt_goes_back(stub: dict[str, BaseException]) -> None:
    """From the server, or from the wait for it; it is not counted, and nothing is to be stopped."""
    process = StubProcess(**{"answer": AWAY} | stub)  # type: ignore[arg-type]
    assert ending(process) == PutBack("the worker was told to stop")
    assert (process.noted, process.given_up) == ([], [])


def test_the_count_on_the_message_is_taken_where_it_is_higher() -> None:
    """Workers on other disks tried five times: this is the sixth, and it is alone."""
    process = StubProcess(MISMATCH, TriedBefore(1))
    assert ending(process, num_retries=5) == Dead(MISMATCH)
    assert process.asked == [(JOB.key, True)]
    assert process.given_up == [("a-run", JOB.key, "dump-checksum", 6)]


def test_the_count_on_the_disk_is_taken_where_it_is_higher() -> None:
    """A message that was lost came back without its count; a mismatch is no reason to be alone."""
    process = StubProcess(MISMATCH, TriedBefore(5))
    assert ending(process, num_retries=1) == Dead(MISMATCH)
    assert process.asked == [(JOB.key, False)]
    assert process.given_up == [("a-run", JOB.key, "dump-checksum", 6)]


def test_a_prompt_that_was_lost_is_tried_alone() -> None:
    """From its first loss on."""
    process = StubProcess(before=TriedBefore(1, ("worker-lost",)))
    assert isinstance(ending(process), Done)
    assert process.asked == [(JOB.key, True)]


def test_a_deadly_prompt_is_not_asked_for_again() -> None:
    """Three losses: its letter has the last one's kind, and all that failed."""
    losses = ("server-lost", "server-lost", "worker-lost")
    process = StubProcess(before=TriedBefore(4, losses))
    dead = ending(process)
    assert isinstance(dead, Dead)
    assert dead.error.kind == "worker-lost"
    assert process.asked == []
    assert process.given_up == [("a-run", JOB.key, "worker-lost", 4)]


def test_a_stored_sample_is_not_given_up() -> None:
    """The third process was killed after it had stored the sample."""
    before = TriedBefore(3, ("worker-lost",) * 3)
    process = StubProcess(before=before, has_sample=True)
    assert isinstance(ending(process), Done)
    assert process.given_up == []


def test_a_disk_that_fails_stops_the_worker_and_blames_no_prompt() -> None:
    """Whatever the process was writing at that moment."""
    process = StubProcess(OSError(5, "Input/output error"))
    back = ending(process)
    assert isinstance(back, PutBack)
    assert isinstance(back.stop, StopError)
    assert back.stop.kind == "disk-failed"
    assert (process.noted, process.given_up) == ([], [])


def test_what_nobody_foresaw_stops_the_worker_and_counts_as_a_loss() -> None:
    """The prompt would stop the next worker too."""
    process = StubProcess(ZeroDivisionError("by zero"))
    back = ending(process)
    assert isinstance(back, PutBack)
    assert isinstance(back.stop, StopError)
    assert (back.stop.kind, back.why) == ("unforeseen", "ZeroDivisionError: by zero")
    assert process.noted == [(JOB.key, "worker-lost")]
    assert process.given_up == []


def test_a_ledger_that_cannot_be_written_stops_the_worker() -> None:
    """The message goes back: it is dead only when that is durable."""
    back = ending(StubProcess(REFUSED, is_ledger_broken=True))
    assert isinstance(back, PutBack)
    assert isinstance(back.stop, StopError)
    assert back.stop.kind == "disk-full"
    assert "No space left on device" in back.why


def test_a_job_that_cannot_be_read_is_dead() -> None:
    """Under the run and the key that its message names; nobody is asked."""
    process = StubProcess()
    message = JOB.to_message() | {"ids": "no ids"}
    dead = ending(process, message=message)
    assert isinstance(dead, Dead)
    assert dead.error.kind == "job-unreadable"
    assert process.given_up == [("a-run", JOB.key, "job-unreadable", 1)]
    assert process.asked == []
