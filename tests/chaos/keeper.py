"""Keeper: starts a service, and starts it again whenever it has ended, as systemd would."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import psutil
from statetap_contract import MissingError
from statetap_local.service import Service

_POLL_S: Final = 0.05


class Keeper:
    """Keeps one service running in a thread of its own until it is closed.

    Args:
        make: starts the service, and returns once it may be used.
        pause_s: seconds between an end and the next start.
        stop_s: seconds that it has to end in when the keeper is closed. A worker commits what it
            is at, and may have to wait for its server before it gives that back.
    """

    def __init__(
        self, name: str, make: Callable[[], Service], pause_s: float = 0.5, stop_s: float = 120.0
    ) -> None:
        self.name = name
        #: How it ended, by exit code; a signal's is negative. Starts that failed stand under None.
        self.ends: Counter[int | None] = Counter()
        #: What a service did that none may do.
        self.faults: list[str] = []
        self._make = make
        self._pause_s = pause_s
        self._stop_s = stop_s
        self._service: Service | None = None
        self._process: psutil.Process | None = None
        self._must_end_by_s = float("inf")
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"keeper of {name}", daemon=True)
        self._thread.start()

    @property
    def process(self) -> psutil.Process | None:
        """The running service's main process; None while there is none."""
        process = self._process
        return process if process is not None and process.is_running() else None

    def wait(self, timeout_s: float) -> None:
        """Waits until the service runs."""
        deadline_s = time.monotonic() + timeout_s
        while self.process is None:
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{self.name} does not run after {timeout_s:.0f} s")
            time.sleep(_POLL_S)

    def expect_end(self, within_s: float) -> None:
        """Holds it for a fault when the running service has not ended by then."""
        self._must_end_by_s = min(self._must_end_by_s, time.monotonic() + within_s)

    def close(self) -> None:
        """Stops the service, and starts it no more."""
        self._is_closing.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._is_closing.is_set():
            try:
                service = self._make()
            except MissingError:
                self.ends[None] += 1
            else:
                self._watch(service)
            self._is_closing.wait(self._pause_s)

    def _watch(self, service: Service) -> None:
        self._must_end_by_s = float("inf")
        self._process = psutil.Process(service.pid)
        while service.is_running and not self._is_closing.is_set():
            if time.monotonic() > self._must_end_by_s:
                self.faults.append(f"{self.name} (pid {service.pid}) did not end when told to")
                break
            time.sleep(_POLL_S)
        self._process = None
        service.stop(self._stop_s)
        self.ends[service.wait(0)] += 1
