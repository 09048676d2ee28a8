"""Stack: a copy of the repository whose services run in containers, and what they say."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx

#: Seconds for one command; images are built in the longest.
_COMMAND_S: Final = 1800.0

#: Seconds for what is waited for, unless said otherwise.
_PATIENCE_S: Final = 300.0

#: The Python of the base images.
_PYTHON: Final = "3.11"


class Stack:
    """The containers of one project.

    Args:
        repository: where the files are copied from that git knows, or would.
        folder: for the copy.
        engine: address of the Docker engine.
    """

    def __init__(self, repository: Path, folder: Path, engine: str) -> None:
        self.folder = folder
        self._begun_s = time.monotonic()
        self._environment = dict(os.environ) | {
            "DOCKER_HOST": engine,
            "STATETAP_BUILD_NETWORK": "host",
        }
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=repository,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (repository / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(repository / name, folder / name)
        self.compose_command = compose_command()

    def step(self, text: str) -> None:
        """Says what comes next, for whoever watches."""
        print(f"[{time.monotonic() - self._begun_s:5.0f} s] {text}", flush=True)  # noqa: T201

    def take_package_settings(self) -> None:
        """Hands this machine's certificates, index and build of torch into the build of images."""
        inputs = self.folder / "infra/images/inputs"
        bundle = os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt")
        if Path(bundle).is_file():
            shutil.copy(bundle, inputs / "ca.crt")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        index = subprocess.run(
            [*pip, "config", "get", "global.index-url"], capture_output=True, text=True, check=False
        )
        if index.returncode == 0:
            self._environment.setdefault("PIP_INDEX_URL", index.stdout.strip())
        # Whichever build this machine's pip is told to take.
        download = [*pip, "download", "--quiet", "--no-deps", f"--python-version={_PYTHON}"]
        lock = self.folder / "requirements/torch.lock"
        subprocess.run(
            [*download, "--only-binary=:all:", f"--dest={inputs}/wheels", f"--requirement={lock}"],
            check=True,
        )

    def shell(self, line: str) -> str:
        """Runs a line that a person would type, and returns what it printed, errors too."""
        return self.run(["bash", "-c", line.replace("docker compose", self.compose_command)])

    def compose(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Runs a command of Compose."""
        return self.run([*self.compose_command.split(), *arguments], environment)

    def statetap(self, *arguments: str) -> str:
        """Runs a command of statetap in a container of its own; gives what it printed."""
        return self.compose("run", "--rm", "producer", *arguments)

    def docker(self, *arguments: str) -> str:
        """Runs a command of Docker."""
        return self.run(["docker", *arguments])

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """Runs a command in the copy.

        Returns:
            What it wrote, errors in between.
        """
        ended = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment | dict(environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        assert ended.returncode == 0, f"{command} ended with {ended.returncode}:\n{ended.stdout}"
        return ended.stdout

    def container(self, service: str) -> str:
        """The id of a service's container."""
        found = self.compose("ps", "--all", "--quiet", service).strip()
        assert found, f"{service} has no container"
        return found

    def inspect(self, service: str, form: str) -> str:
        """One fact of a service's container, by a template of Docker's."""
        return self.docker("inspect", f"--format={form}", self.container(service)).strip()

    def wait_healthy(self, *services: str) -> None:
        """Waits until containers are healthy by their own checks."""
        for service in services:
            self.wait_for(f"healthy {service}", partial(self._is_healthy, service))

    def _is_healthy(self, service: str) -> bool:
        return self.inspect(service, "{{.State.Health.Status}}") == "healthy"

    def wait_for(
        self, what: str, is_there: Callable[[], bool], patience_s: float = _PATIENCE_S
    ) -> None:
        """Waits for something; fails when it does not come."""
        deadline_s = time.monotonic() + patience_s
        while not is_there():
            assert time.monotonic() < deadline_s, f"no {what} in {patience_s:.0f} s"
            time.sleep(0.5)

    def metrics(self) -> str:
        """The worker's page of metrics; empty while it is away."""
        try:
            return httpx.get("http://127.0.0.1:9400/metrics", timeout=10, trust_env=False).text
        except httpx.TransportError:
            return ""

    def num_stored(self) -> int:
        """Samples that the worker stored since it started, by its metrics; 0 while it is away."""
        name = "statetap_samples_stored_total "
        rows = [row for row in self.metrics().splitlines() if row.startswith(name)]
        return sum(int(float(row.removeprefix(name))) for row in rows)

    def flower(self, path: str, password: str | None) -> httpx.Response:
        """What Flower answers."""
        auth: Any = None if password is None else ("statetap", password)
        return httpx.get(f"http://127.0.0.1:5555{path}", auth=auth, timeout=30, trust_env=False)


def compose_command() -> str:
    """Compose v2 where it is installed, docker-compose 1.29 where not; empty without either."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if plugin.returncode == 0:
        return "docker compose"
    return "docker-compose" if shutil.which("docker-compose") else ""
