"""MetricsPage: answers Prometheus with what all processes of the worker count, and what is around.

Whatever is around may be gone or slow, and costs its own lines then, never the answer.
"""

import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import redis
import structlog
from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from statetap_contract import queue_name

from statetap_worker.measuring.scrape_point import ScrapePoint
from statetap_worker.queueing.unreadable import ledger_of
from statetap_worker.settings import WorkerSettings

logger = structlog.get_logger(__name__)

#: Seconds for Redis and for the server each; Prometheus waits ten in all.
_AROUND_TIMEOUT_S: Final = 1.0

#: Seconds that a client may take over its request.
_REQUEST_TIMEOUT_S: Final = 10.0

_CHUNK_BYTES: Final = 1 << 20

#: Seconds within which ``close`` is noticed.
_POLL_S: Final = 0.1


class MetricsPage:
    """A thread in the child of slot 0.

    Not in the parent: a lock might be held there at the moment of a fork.

    Args:
        point: taken by the parent.
        settings: the worker's.
        spec_digest: of the capture spec to whose queue the worker listens.
    """

    def __init__(self, point: ScrapePoint, settings: WorkerSettings, spec_digest: str) -> None:
        registry = CollectorRegistry()
        registry.register(_Counted(point.folder))
        self._around = _Around(settings, queue_name(spec_digest))
        registry.register(self._around)
        self._http = _Server(point, registry)
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_S,), name="metrics", daemon=True
        )

    def start(self) -> None:
        """Answers from now on."""
        self._thread.start()

    def close(self) -> None:
        """Answers no more; requests wait for whoever comes next."""
        self._http.shutdown()
        self._around.close()


class _Server(ThreadingHTTPServer):
    """Listens where the parent does."""

    def __init__(self, point: ScrapePoint, registry: CollectorRegistry) -> None:
        fields = {"registry": registry, "timeout": _REQUEST_TIMEOUT_S}
        handler = type("Handler", (MetricsHandler,), fields)
        super().__init__(point.listener.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = point.listener

    def handle_error(self, _request: Any, client_address: Any) -> None:
        logger.warning("a scrape failed", client=client_address[0], why=repr(sys.exception()))


class _Counted(Collector):
    """The sums over all processes, dead ones included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        # A file is empty for a moment when it is made.
        files = [str(path) for path in self._folder.glob("*.db") if path.stat().st_size]
        merge: Callable[[list[str]], Iterable[Metric]] = MultiProcessCollector.merge
        return merge(files)


class _Around(Collector):
    """Queue, server and disks, looked at when asked."""

    def __init__(self, settings: WorkerSettings, queue: str) -> None:
        self._settings = settings
        self._queue = queue
        self._redis = redis.Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=_AROUND_TIMEOUT_S,
            socket_timeout=_AROUND_TIMEOUT_S,
            retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
        )
        self._unreadable = _Lines(ledger_of(settings))
        self._http = httpx.Client(timeout=_AROUND_TIMEOUT_S, trust_env=False)

    def close(self) -> None:
        self._redis.close()
        self._http.close()

    def collect(self) -> Iterator[Metric]:
        num_messages = self._num_messages()
        yield _gauge("redis_ready", "Whether Redis answers.", int(num_messages is not None))
        if num_messages is not None:
            messages = GaugeMetricFamily(
                "statetap_queue_messages", "Messages that wait in the queue.", labels=["queue"]
            )
            messages.add_metric([self._queue], num_messages)
            yield messages
        yield _gauge("server_ready", "Whether the server takes requests.", int(self._is_ready()))
        with suppress(OSError):
            yield CounterMetricFamily(
                "statetap_unreadable_messages",
                "Messages set aside because they name no sample.",
                self._unreadable.count(),
            )
        for name, text, folder in (
            ("runs_free_bytes", "Free on the disk of the runs.", self._settings.runs),
            ("dumps_free_bytes", "Free in the memory of the dumps.", self._settings.dumps),
        ):
            with suppress(OSError):
                yield _gauge(name, text, shutil.disk_usage(folder).free)

    def _num_messages(self) -> int | None:
        try:
            return self._redis.llen(self._queue)
        except redis.RedisError:
            return None

    def _is_ready(self) -> bool:
        try:
            # A flag of the server's. Its /health would have it compute a token.
            with self._http.stream("GET", f"{self._settings.server_url}/ready") as answer:
                return answer.is_success
        except httpx.HTTPError:
            return False


class _Lines:
    """Counts the lines of a file that only grows; it is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_bytes = self._num_lines = 0
        #: Several may scrape at once.
        self._lock = threading.Lock()

    def count(self) -> int:
        """Raises OSError when the file cannot be read; one that is not there has no lines."""
        with self._lock, suppress(FileNotFoundError), self._path.open("rb") as stream:
            stream.seek(self._num_bytes)
            while chunk := stream.read(_CHUNK_BYTES):
                self._num_bytes += len(chunk)
                self._num_lines += chunk.count(b"\n")
        return self._num_lines


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"statetap_{name}", text, value)
