"""From a message to what becomes of it. No Celery here: the shell carries that out."""

from dataclasses import dataclass, replace

import structlog
from statetap_contract import Job, StatetapError, StopError
from statetap_store.disk_errors import NO_ROOM

from statetap_worker.failing.recall import Recalled
from statetap_worker.failing.retry import Again, GiveUp, WaitForServer, counts, deadly_error, decide
from statetap_worker.failing.tries import WORKER_LOST, TriedBefore
from statetap_worker.process import WorkerProcess

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """The sample is durable: acknowledge."""

    #: For Flower; nothing is kept of it.
    result: dict[str, object]


@dataclass(frozen=True, slots=True)
class Dead:
    """The dead letter is durable: acknowledge, and show the failure."""

    error: StatetapError


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Queue the job again, for ``wait_s`` seconds later; then acknowledge."""

    error: StatetapError
    wait_s: float


@dataclass(frozen=True, slots=True)
class PutBack:
    """The message goes back to the queue as it is."""

    why: str
    #: Why the worker must stop, None where it need not.
    stop: StatetapError | None = None


Ending = Done | Dead | TryAgain | PutBack


def work_off(process: WorkerProcess, message: object, num_retries: int) -> Ending:
    """Extracts the prompt of one message, or does what ``retry.decide`` decides.

    Args:
        process: this process.
        message: the task's argument; anything may be in a queue.
        num_retries: how often the message says that it was sent again.
    """
    try:
        return _worked_off(process, message, num_retries)
    except Recalled:
        return PutBack("the worker was told to stop")
    except StatetapError as error:
        return _stopped(error)
    except OSError as error:
        kind = "disk-full" if error.errno in NO_ROOM else "disk-failed"
        return _stopped(StopError(kind, f"cannot note what became of a prompt: {error}"))
    except Exception as error:
        logger.exception("unforeseen failure", key=_names_in(message)[1])
        return _stopped(StopError("unforeseen", f"{type(error).__name__}: {error}"))


def _worked_off(process: WorkerProcess, message: object, num_retries: int) -> Ending:
    job: Job | None = None
    before = TriedBefore(num_retries)
    try:
        job = Job.from_message(message)
        noted = process.tried_before(job)
        # Processes on other disks have noted their tries there, and counted on the message.
        before = replace(noted, num_failed=max(noted.num_failed, num_retries))
        deadly = deadly_error(before)
        if deadly is not None and not process.is_stored(job):
            process.give_up(job.run, job.key, deadly, before.num_failed)
            return Dead(deadly)
        # What another disk says of its tries is not known here: they may have been losses.
        is_suspect = bool(before.losses) or before.num_failed > noted.num_failed
        outcome = process.extract(job, is_suspect=is_suspect)
    except StatetapError as error:
        if job is not None and counts(error):
            process.note_failure(job, error.kind)
        return _carried_out(process, message, before, error)
    except OSError:  # a disk of this worker's
        raise
    except Exception:
        # It ends this worker, and would end the next one: that is a loss like any other.
        if job is not None:
            process.note_failure(job, WORKER_LOST)
        raise
    process.metrics.stored(outcome)
    result = outcome.to_json() | {"attempt": before.num_failed + 1}
    logger.info("stored" if outcome.is_new else "stored already", **result)
    return Done(result)


def _carried_out(
    process: WorkerProcess, message: object, before: TriedBefore, error: StatetapError
) -> Ending:
    run, key = _names_in(message)
    match decide(error, before):
        case GiveUp():
            process.give_up(run, key, error, before.num_failed + 1)
            return Dead(error)
        case WaitForServer(at_least_s=wait_s):
            process.metrics.waited(error.kind)
            logger.warning("waiting for the server", key=key, kind=error.kind, why=str(error))
            process.wait_for_server(wait_s)
            # What counts goes along with the message, for workers on other disks.
            return TryAgain(error, 0.0) if counts(error) else PutBack(str(error))
        case Again(wait_s=wait_s):
            process.metrics.retried(error.kind)
            logger.warning(
                "trying again",
                key=key,
                attempt=before.num_failed + 2,
                kind=error.kind,
                why=str(error),
                wait_s=wait_s,
            )
            return TryAgain(error, wait_s)
    return _stopped(error)


def _stopped(error: StatetapError) -> PutBack:
    return PutBack(str(error), stop=error)


def _names_in(message: object) -> tuple[str, str]:
    """Run and key of a message; ``read_message`` lets none pass that has not both."""
    fields = message if isinstance(message, dict) else {}
    return str(fields.get("run")), str(fields.get("key"))
