"""The Celery shell around ``WorkerProcess``: what Celery must be told, and nothing else.

Celery acknowledges a task that fails in a way nobody foresaw. Here a message is acknowledged only
when its sample is durable in a shard or in the ledger; every other end puts it back.
"""

import os
import signal
import socket
from typing import Any

import billiard
import structlog
from celery import Celery, Task
from celery.exceptions import Reject
from celery.signals import (
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutting_down,
)
from statetap_contract import (
    TASK_NAME,
    MissingError,
    ServerCapture,
    StatetapError,
    StopError,
    celery_settings,
    queue_name,
)

from statetap_worker.failing.recall import pass_on
from statetap_worker.measuring.scrape_point import ScrapePoint
from statetap_worker.place import place_of
from statetap_worker.process import WorkerProcess
from statetap_worker.queueing.batching_consumer import BatchingConsumer
from statetap_worker.queueing.queue_channel import guarded
from statetap_worker.queueing.remote_control import obey_only_inspection
from statetap_worker.queueing.taken_messages import Pulse, with_own_hash
from statetap_worker.queueing.unreadable import ledger_of
from statetap_worker.settings import WorkerSettings
from statetap_worker.work import Dead, Done, PutBack, TryAgain, work_off

logger = structlog.get_logger(__name__)


class WorkerShell:
    """One worker, listening on the queue of its server's capture spec.

    The object exists in the parent and, after the fork, in each child; ``_process`` is the child's.
    """

    def __init__(
        self, settings: WorkerSettings, capture: ServerCapture, point: ScrapePoint | None
    ) -> None:
        self._settings = settings
        self._capture = capture
        self._point = point
        self._process: WorkerProcess | None = None
        self._worker: Any = None
        self._parent_pid = os.getpid()
        #: Shared by parent and children: why the worker was stopped, 0 while it was not.
        self._stop_code = billiard.Value("i", 0)
        self._worker_id = _worker_id(settings)
        self._app = Celery("statetap")
        celery = with_own_hash(celery_settings(settings.redis_url), self._worker_id)
        self._app.conf.update(
            guarded(celery, ledger_of(settings)),
            task_default_queue=queue_name(capture.spec.digest),
            worker_pool="prefork",
            worker_consumer=f"{BatchingConsumer.__module__}:{BatchingConsumer.__name__}",
            worker_concurrency=settings.num_processes,
            # Redis without memory refuses what a worker sends, acknowledgements too: an outage
            # like any other.
            broker_channel_error_retry=True,
        )

        # ``decide`` ends retries, and counts on disk; the delay is for a child that was lost.
        # Failures of ours are in the log already, in a line of their own.
        @self._app.task(
            bind=True,
            base=_Extraction,
            name=TASK_NAME,
            max_retries=None,
            default_retry_delay=1,
            throws=(StatetapError,),
        )
        def extract(task: Task, message: object) -> _Shown:
            return self._extract(task, message)

        # Celery holds handlers weakly unless told otherwise.
        worker_process_init.connect(self._open_process, weak=False)
        worker_process_shutdown.connect(self._close_process, weak=False)
        worker_ready.connect(_heed_interrupts, weak=False)
        worker_shutting_down.connect(self._recall, weak=False)

    def run(self) -> int:
        """Works until it is told to stop. Returns the exit code."""
        obey_only_inspection()
        # Before it takes anything; later on a child says so.
        pulse = Pulse(self._settings.redis_url, self._worker_id)
        pulse.beat()
        pulse.close()
        self._worker = worker = self._app.Worker(
            hostname=f"{self._settings.name}@{socket.gethostname()}",
            # No banner: the log is one line for each event.
            quiet=True,
            # Workers have nothing to tell one another.
            without_gossip=True,
            without_mingle=True,
        )
        worker.start()
        return int(self._stop_code.value or worker.exitcode or 0)

    def _open_process(self, **_: Any) -> None:
        try:
            # Who signals the whole group shall not end what the parent says is to be finished.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            # Celery has the kernel kill a child with its parent, which may have ended before that.
            if os.getppid() != self._parent_pid:
                os.kill(os.getpid(), signal.SIGKILL)
            slot = billiard.current_process().index
            self._process = WorkerProcess(
                self._settings, self._capture, self._worker_id, slot, self._point
            )
        except Exception as error:
            # Celery would go on with a child that can do nothing.
            logger.exception("a worker process cannot start")
            self._stop(StopError("process-failed", f"a worker process cannot start: {error}"))

    def _close_process(self, **_: Any) -> None:
        if self._process is not None:
            self._process.close()

    def _recall(self, **_: Any) -> None:
        """In the parent, in the handler of each signal that tells it to stop."""
        if self._worker is not None and self._worker.pool is not None:
            pass_on(self._worker.pool.info["processes"])

    def _extract(self, task: Task, message: object) -> "_Shown":
        """Extracts one prompt, as far as Celery hears of it."""
        if self._process is None:
            raise Reject("this process did not start", requeue=True)
        match work_off(self._process, message, task.request.retries):
            case Done(result=result):
                return _Shown(result)
            case Dead(error=error):
                # Flower shows a failure with its reason; the message is acknowledged all the same.
                raise error
            case TryAgain(error=error, wait_s=wait_s):
                try:
                    raise task.retry(exc=error, countdown=wait_s)
                except Reject as unsent:
                    # Redis did not take the retry; Celery would drop the message for that.
                    raise Reject(unsent.reason, requeue=True) from unsent
            case PutBack(why=why, stop=stop):
                if stop is not None:
                    self._stop(stop)
                raise Reject(why, requeue=True)

    def _stop(self, error: StatetapError) -> None:
        """Ends the whole worker from one of its children: warm, so that running tasks finish."""
        logger.critical("stopping this worker", kind=error.kind, why=error.message)
        with self._stop_code.get_lock():
            is_first = not self._stop_code.value
            self._stop_code.value = self._stop_code.value or error.exit_code
        # A second signal would tell the other children to give back what they are at.
        if is_first:
            os.kill(self._parent_pid, signal.SIGTERM)


class _Shown:
    """A result, of which Flower shows the text: which of a dict takes Celery ten times as long."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def __repr__(self) -> str:
        return repr(self._fields)


class _Extraction(Task):  # type: ignore[misc]  # Celery has no types
    """A task whose retries are shown as the first try was: readable, not as packed ids."""

    def signature_from_request(self, request: Any = None, *args: Any, **options: Any) -> Any:
        request = self.request if request is None else request
        shown = {"argsrepr": getattr(request, "argsrepr", None) or ""}
        return super().signature_from_request(request, *args, **options, **shown)


def _heed_interrupts(**_: Any) -> None:
    """Ctrl-C and SIGQUIT are SIGTERM; Celery would cancel tasks by its own rules for them."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.getsignal(signal.SIGTERM))


def _worker_id(settings: WorkerSettings) -> str:
    """The worker's name and the place where it is the only one of that name."""
    try:
        return f"{place_of(settings.runs)}.{settings.name}"
    except OSError as error:
        raise MissingError("folder-unwritable", f"cannot name {settings.runs}: {error}") from error
