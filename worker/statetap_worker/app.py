"""The Celery application: a thin shell around ``WorkerProcess``."""

import logging
import os
import signal
from typing import Any

import billiard
from celery import Celery, Task
from celery.exceptions import Reject
from celery.signals import worker_process_init, worker_process_shutdown
from statetap_contract import (
    RUN_NAME_FORM,
    TASK_NAME,
    Job,
    RejectError,
    ServerCapture,
    StatetapError,
    StopError,
    celery_settings,
    queue_name,
)

from statetap_worker.process import WorkerProcess
from statetap_worker.retry import MAX_ATTEMPTS, Again, GiveUp, decide
from statetap_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


def make_app(settings: WorkerSettings, capture: ServerCapture) -> Celery:
    """The application of one worker, listening on the queue of its server's capture spec."""
    app = Celery("statetap")
    app.conf.update(
        celery_settings(settings.redis_url),
        task_default_queue=queue_name(capture.spec.digest),
        worker_pool="prefork",
        worker_concurrency=settings.num_processes,
    )
    # The child's own state; None in the parent, which opens no files.
    process: WorkerProcess | None = None

    # Celery holds signal handlers weakly unless told otherwise.
    @worker_process_init.connect(weak=False)
    def open_process(**_: Any) -> None:
        nonlocal process
        slot = billiard.current_process().index
        try:
            process = WorkerProcess(settings, capture, slot)
        except StatetapError as error:
            _stop_worker(error)

    @worker_process_shutdown.connect(weak=False)
    def close_process(**_: Any) -> None:
        if process is not None:
            process.close()

    # The delay is the one after a lost child; all others are ``decide``'s.
    @app.task(bind=True, name=TASK_NAME, max_retries=MAX_ATTEMPTS, default_retry_delay=1)
    def extract(task: Task, message: object) -> dict[str, object]:
        """Extracts one prompt. The result is for Flower; nothing is kept of it."""
        attempt = task.request.retries + 1
        if process is None:
            raise Reject("this process did not start", requeue=True)
        try:
            return process.extract(Job.from_message(message)).to_json() | {"attempt": attempt}
        except StatetapError as error:
            return _handle(task, process, message, error, attempt)

    return app


def _handle(
    task: Task, process: WorkerProcess, message: object, error: StatetapError, attempt: int
) -> dict[str, object]:
    """Carries out what ``retry.decide`` decided."""
    decision = decide(error, attempt)
    if isinstance(decision, Again):
        logger.warning("attempt %d failed kind=%s %s", attempt, error.kind, error)
        raise task.retry(exc=error, countdown=decision.wait_s)
    if isinstance(decision, GiveUp):
        run, key = _names_in(message)
        process.give_up(run, key, error, attempt)
        # Flower and the task's state show a failure; the message is acknowledged all the same.
        raise error
    _stop_worker(error)
    raise Reject(str(error), requeue=True)


def _names_in(message: object) -> tuple[str, str]:
    """Run and key of a message, as far as it can be read.

    Raises:
        RejectError: it names no run, so that there is no ledger to write it to.
    """
    fields = message if isinstance(message, dict) else {}
    run, key = fields.get("run"), fields.get("key")
    if not isinstance(run, str) or not RUN_NAME_FORM.fullmatch(run):
        raise RejectError("job-unreadable", "a message without a readable run was dropped")
    return run, str(key)


def _stop_worker(error: StatetapError | StopError) -> None:
    """Ends the whole worker from one of its children: warm, so that running tasks finish."""
    logger.critical("stopping this worker kind=%s %s", error.kind, error)
    os.kill(os.getppid(), signal.SIGTERM)
