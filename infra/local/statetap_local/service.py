"""One background process: started with a log, waited for, stopped by its pid."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from statetap_contract import MissingError

_POLL_S: Final = 0.1


class Service:
    """A process that runs until it is stopped.

    It gets a session of its own, so that Ctrl-C reaches only the one who started it, who then
    stops everything in order.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the process.

        Args:
            name: for messages.
            command: program and arguments.
            log: file that its output is appended to.
            environment: variables to add to this process's own.
        """
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603  commands are built by this package
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ) | dict(environment or {}),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Waits until the service answers; stops it when it does not.

        Raises:
            MissingError: kind ``service-failed``: it ended, or is not ready in time.
        """
        try:
            self._wait_until(is_ready, time.monotonic() + timeout_s, timeout_s)
        except BaseException:
            # Ctrl-C included: nobody else knows of the process yet.
            self.stop()
            raise

    def _wait_until(
        self, is_ready: Callable[[], bool], deadline_s: float, timeout_s: float
    ) -> None:
        while not is_ready():
            if not self.is_running:
                raise MissingError("service-failed", f"{self.name} did not start: {self._reason()}")
            if time.monotonic() > deadline_s:
                raise MissingError(
                    "service-failed",
                    f"{self.name} is not ready after {timeout_s:.0f} s; see {self.log}",
                )
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float) -> int:
        """Waits for the process to end by itself, and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it did not.
        """
        return self._process.wait(timeout_s)

    def stop(self, timeout_s: float = 30) -> None:
        """Asks the process to end, and ends its whole session when it does not."""
        if self.is_running:
            self._process.terminate()
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def kill(self) -> None:
        """Ends the process as kill -9 does, for tests of what happens then."""
        self._process.kill()
        self._process.wait()

    def _reason(self) -> str:
        """The last line that the process wrote."""
        lines = self.log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")
        return f"{last} (log: {self.log})"


def free_port() -> int:
    """A port on the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    """Whether something accepts connections on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
