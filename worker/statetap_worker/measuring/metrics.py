"""Metrics: what one process of a worker counts. docs/metrics.md lists all of them.

Each process writes to files of its own, and whoever is asked adds the files up. A file is named
after the process's slot instead of its pid: the child that replaces a killed one goes on with its
numbers, and however many are killed, the files are as many as the processes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram, values

from statetap_worker.pipeline import Outcome

#: Where prometheus_client looks for the folder of its files.
_FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"

#: Its files for the metrics below, and their size, of which they fill a small part.
_FILES: Final = ("counter", "gauge_sum", "histogram")
_FILE_BYTES: Final = 1 << 16

#: Seconds, up to a worker's longest wait for an answer.
_BUCKETS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0),
)


class Metrics:
    """The counters of this process. A process makes one.

    Args:
        folder: of the files, None where nobody will ask.
        process: names them; no other process has this name, and a successor has the same.
        row_bytes: bytes of the states of one token.

    Raises:
        OSError: there is no room in the folder.
    """

    def __init__(self, folder: Path | None, process: str, row_bytes: int) -> None:
        if folder is not None:
            _take_room(folder, process)
            os.environ[_FOLDER_VARIABLE] = str(folder)
            # What a metric keeps its value in is looked up when it is made, so that this is in
            # time. The library's own way is to have the variable set before it is imported.
            make_class: Callable[[Callable[[], str]], Any] = values.MultiProcessValue
            values.ValueClass = make_class(lambda: process)
        self._row_bytes = row_bytes
        self._stored = _counter("samples_stored", "Samples stored.")
        self._found = _counter("samples_found", "Samples that were stored already.")
        self._tokens = _counter("tokens_stored", "Tokens of the samples stored.")
        self._bytes = _counter("states_stored_bytes", "Bytes of the states stored.")
        self._retries = _counter(
            "retries", "Failed tries after which a sample is tried again.", "kind"
        )
        self._waits = _counter("server_waits", "Prompts put back to wait for the server.", "kind")
        self._dead = _counter("dead_letters", "Samples given up.", "kind")
        seconds = Histogram(
            "statetap_stage_seconds",
            "Seconds of one sample in each stage.",
            ["stage"],
            registry=None,
            buckets=_BUCKETS_S,
        )
        self._server, self._prove, self._store = map(seconds.labels, ("server", "prove", "store"))
        self._in_flight = Gauge(
            "statetap_prompts_in_flight",
            "Prompts that are being extracted.",
            registry=None,
            multiprocess_mode="sum",
        )
        # The process before this one may have been killed in the middle of a prompt.
        self._in_flight.set(0)

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """A prompt is in flight while the context lasts."""
        self._in_flight.set(1)
        try:
            yield
        finally:
            self._in_flight.set(0)

    def stored(self, outcome: Outcome) -> None:
        """A sample is stored, or was found to be."""
        if not outcome.is_new:
            self._found.inc()
            return
        self._stored.inc()
        self._tokens.inc(outcome.num_tokens)
        self._bytes.inc(outcome.num_tokens * self._row_bytes)
        self._server.observe(outcome.server_ms / 1000)
        self._prove.observe(outcome.prove_ms / 1000)
        self._store.observe(outcome.store_ms / 1000)

    def retried(self, kind: str) -> None:
        """A sample is tried again."""
        self._retries.labels(kind).inc()

    def waited(self, kind: str) -> None:
        """A prompt was put back because the server is away, busy or full."""
        self._waits.labels(kind).inc()

    def buried(self, kind: str) -> None:
        """A sample is given up."""
        self._dead.labels(kind).inc()


def _take_room(folder: Path, process: str) -> None:
    """Allocates the files: a page without room, written to later, would end the process."""
    for kind in _FILES:
        fd = os.open(folder / f"{kind}_{process}.db", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _FILE_BYTES)
        finally:
            os.close(fd)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"statetap_{name}", text, labels, registry=None)
