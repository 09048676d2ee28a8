"""The Celery shell around ``WorkerProcess``: what Celery must be told, and nothing else.

Celery acknowledges a task that fails in a way nobody foresaw. Here a message is acknowledged only
when its sample is durable in a shard or in the ledger; every other end puts it back.
"""

import logging
import os
import signal
import socket
from typing import Any, NoReturn

import billiard
from billiard.exceptions import WorkerLostError
from celery import Celery, Task
from celery.exceptions import Reject
from celery.signals import task_failure, worker_process_init, worker_process_shutdown
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

from statetap_worker.ledger import bury
from statetap_worker.process import WorkerProcess
from statetap_worker.retry import MAX_ATTEMPTS, Again, GiveUp, WaitForServer, decide
from statetap_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class WorkerShell:
    """One worker, listening on the queue of its server's capture spec.

    The object exists in the parent and, after the fork, in each child; ``_process`` is the child's.
    """

    def __init__(self, settings: WorkerSettings, capture: ServerCapture) -> None:
        self._settings = settings
        self._capture = capture
        self._process: WorkerProcess | None = None
        self._parent_pid = os.getpid()
        #: Shared by parent and children: why the worker was stopped, 0 while it was not.
        self._stop_code = billiard.Value("i", 0)
        self._app = Celery("statetap")
        self._app.conf.update(
            celery_settings(settings.redis_url),
            task_default_queue=queue_name(capture.spec.digest),
            worker_pool="prefork",
            worker_concurrency=settings.num_processes,
            # Redis without memory refuses what a worker sends, acknowledgements too: an outage
            # like any other.
            broker_channel_error_retry=True,
        )

        # ``decide`` ends retries before Celery would. Celery's own bound and delay are for a
        # child that was lost, of which no code of ours hears in time.
        @self._app.task(
            bind=True, name=TASK_NAME, max_retries=MAX_ATTEMPTS - 1, default_retry_delay=1
        )
        def extract(task: Task, message: object) -> dict[str, object]:
            return self._extract(task, message)

        # Celery holds handlers weakly unless told otherwise.
        worker_process_init.connect(self._open_process, weak=False)
        worker_process_shutdown.connect(self._close_process, weak=False)
        task_failure.connect(self._bury_lost, weak=False)

    def run(self) -> int:
        """Works until it is told to stop. Returns the exit code."""
        worker = self._app.Worker(
            hostname=f"{self._settings.name}@{socket.gethostname()}",
            loglevel="WARNING",
            # Workers have nothing to tell one another.
            without_gossip=True,
            without_mingle=True,
        )
        worker.start()
        return int(self._stop_code.value or worker.exitcode or 0)

    def _open_process(self, **_: Any) -> None:
        try:
            slot = billiard.current_process().index
            self._process = WorkerProcess(self._settings, self._capture, slot)
        except Exception as error:
            # Celery would go on with a child that can do nothing.
            logger.exception("a worker process cannot start")
            self._stop(StopError("process-failed", f"a worker process cannot start: {error}"))

    def _close_process(self, **_: Any) -> None:
        if self._process is not None:
            self._process.close()

    def _extract(self, task: Task, message: object) -> dict[str, object]:
        """Extracts one prompt. The result is for Flower; nothing is kept of it."""
        process = self._process
        if process is None:
            raise Reject("this process did not start", requeue=True)
        attempt = task.request.retries + 1
        try:
            return process.extract(Job.from_message(message)).to_json() | {"attempt": attempt}
        except StatetapError as error:
            self._handle(task, process, message, error)
        except Exception as error:
            logger.exception("unforeseen failure")
            self._stop_and_put_back(StopError("unforeseen", f"{type(error).__name__}: {error}"))

    def _handle(
        self, task: Task, process: WorkerProcess, message: object, error: StatetapError
    ) -> NoReturn:
        """Carries out what ``retry.decide`` decided."""
        attempt = task.request.retries + 1
        match decide(error, attempt):
            case WaitForServer(at_least_s=at_least_s):
                logger.warning("waiting for the server kind=%s %s", error.kind, error)
                try:
                    process.wait_for_server(at_least_s)
                except StatetapError as gone:
                    self._stop_and_put_back(gone)
                raise Reject(str(error), requeue=True)
            case Again(wait_s=wait_s):
                logger.warning("attempt %d failed kind=%s %s", attempt, error.kind, error)
                try:
                    raise task.retry(exc=error, countdown=wait_s)
                except Reject as unsent:
                    # Redis did not take the retry; Celery would drop the message for that.
                    raise Reject(unsent.reason, requeue=True) from unsent
            case GiveUp():
                run, key = _names_in(message)
                try:
                    process.give_up(run, key, error, attempt)
                except OSError as unwritten:
                    self._stop_and_put_back(
                        StopError("ledger-unwritable", f"cannot write to the ledger: {unwritten}")
                    )
                # Flower shows a failure with its reason; the message is acknowledged all the same.
                raise error
            case _:
                self._stop_and_put_back(error)

    def _bury_lost(self, exception: object = None, args: tuple[Any, ...] = (), **_: Any) -> None:
        """In the parent: a prompt that killed every child it was given to.

        Celery acknowledges the message whatever happens here; a letter that cannot be written
        leaves the sample pending, and the next ``enqueue`` queues it again.
        """
        if not isinstance(exception, WorkerLostError) or not args:
            return
        run, key = _names_in(args[0])
        lost = RejectError("worker-lost", f"the prompt ended {MAX_ATTEMPTS} processes: {exception}")
        bury(self._settings, f"{self._settings.name}-parent", run, key, lost, MAX_ATTEMPTS)

    def _stop_and_put_back(self, error: StatetapError) -> NoReturn:
        self._stop(error)
        raise Reject(str(error), requeue=True)

    def _stop(self, error: StatetapError) -> None:
        """Ends the whole worker from one of its children: warm, so that running tasks finish."""
        logger.critical("stopping this worker kind=%s %s", error.kind, error)
        self._stop_code.value = error.exit_code
        # A child that outlived its parent belongs to somebody else by now.
        if os.getppid() == self._parent_pid:
            os.kill(self._parent_pid, signal.SIGTERM)


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
