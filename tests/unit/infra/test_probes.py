"""Commands that ask a server how it is do so without its key, and believe what it says."""

import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import pytest

from .manifests import Manifest, pod_of

#: What a server with a key answers to everybody; tests/acceptance/test_api_key.py asks a real one.
OPEN_DOORS: Final = ("/health", "/ready")

PORT: Final = ":30000/"


class Guarded(ThreadingHTTPServer):
    """Stands in for a server that wants a key: its open doors answer ``status``, others 401."""

    status = 200


class Door(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        assert isinstance(self.server, Guarded)
        self.send_response(self.server.status if self.path in OPEN_DOORS else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Guarded]:
    with Guarded(("127.0.0.1", 0), Door) as guarded:
        thread = threading.Thread(target=guarded.serve_forever)
        thread.start()
        yield guarded
        guarded.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["startupProbe", "livenessProbe"])
def test_probes_need_no_key(cpu_system: list[Manifest], server: Guarded, name: str) -> None:
    """Well where the server says so; not where it is busy loading, or gone."""
    probe = pod_of(cpu_system, "StatefulSet", "worker").container("server")[name]
    command = [part.replace(PORT, f":{server.server_port}/") for part in probe["exec"]["command"]]
    assert command != probe["exec"]["command"]
    assert exit_code(command) == 0
    server.status = 503
    assert exit_code(command) != 0
    server.shutdown()
    server.server_close()
    assert exit_code(command) != 0


def exit_code(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def test_a_probe_gives_up_before_it_is_given_up(system: list[Manifest]) -> None:
    """The command ends by itself: one that the kubelet has to end may go on in the container."""
    for kind, name in (("StatefulSet", "worker"), ("Deployment", "flower")):
        for container in pod_of(system, kind, name).containers:
            for probe in (container.get(each) for each in ("startupProbe", "livenessProbe")):
                if probe is not None:
                    seconds = int(
                        probe["exec"]["command"][-1].rpartition("timeout=")[2].rstrip(")")
                    )
                    assert seconds < probe["timeoutSeconds"] <= probe["periodSeconds"]
