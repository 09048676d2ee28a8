"""``make demo``: the whole of statetap on one machine, from nothing to a checked dataset.

It starts the real services and then types, so to speak, the commands that a person would.
"""

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from rich.console import Console
from rich.panel import Panel
from statetap_contract import StatetapError
from statetap_store import RunScanner

from statetap_local.models import smollm2, tiny_llama
from statetap_local.service import Service, is_listening
from statetap_local.services import LocalFlower, LocalRedis, LocalServer, LocalWorker

_REPOSITORY: Final = Path(__file__).resolve().parents[3]
_DATASET: Final = _REPOSITORY / "examples" / "data" / "conversations.jsonl"
_CACHE: Final = _REPOSITORY / ".cache" / "models"
_FLOWER_PORT: Final = 5555
_RUN_NAME: Final = "example"

#: Where dumps go on this system: a file system in memory.
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  not predictable: a folder is made inside

S = TypeVar("S", bound=Service)
T = TypeVar("T")


def main() -> None:
    """Runs the demo; the exit code is that of the first command that failed."""
    arguments = _parser().parse_args()
    # A polite kill must stop the services too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    try:
        with ExitStack() as stack:
            _Demo(arguments, console, stack).run()
    except StatetapError as error:
        console.print(f"[red]demo:[/] {error}", highlight=False)
        sys.exit(error.exit_code)
    except subprocess.CalledProcessError as error:
        console.print(f"[red]demo:[/] the last command failed with code {error.returncode}")
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        console.print("demo: interrupted; everything that was started is stopped")
        sys.exit(130)


class _Demo:
    """One go through the whole pipeline. ``stack`` undoes what it started, in reverse order."""

    def __init__(self, arguments: argparse.Namespace, console: Console, stack: ExitStack) -> None:
        self._is_kept: bool = arguments.keep
        self._dataset: Path = arguments.dataset
        is_tiny = arguments.model == "tiny"
        self._make_model = tiny_llama if is_tiny else smollm2
        self._num_threads = 1 if is_tiny else os.cpu_count() or 1
        self._num_processes: int = arguments.processes
        self._console = console
        self._stack = stack
        self._folder: Path = arguments.folder.resolve()
        self._runs = self._folder / "runs"
        self._run = self._runs / _RUN_NAME
        self._logs = self._folder / "logs"

    def run(self) -> None:
        begun = time.monotonic()
        self._runs.mkdir(parents=True, exist_ok=True)
        self._console.print(f"Logs of all services are in {self._logs}", highlight=False)
        model = self._step("Model", lambda: self._make_model(_CACHE))
        dumps = Path(tempfile.mkdtemp(prefix="statetap-demo-", dir=_SHARED_MEMORY))
        self._stack.callback(shutil.rmtree, dumps, ignore_errors=True)

        num_retries = self._num_retries()
        redis, flower = self._start_queue()
        server = self._start(
            "SGLang server",
            lambda: LocalServer(
                model, dumps, self._logs / "server.log", num_threads=self._num_threads
            ),
        )
        self._start(
            "Worker",
            lambda: LocalWorker(
                server,
                redis,
                dumps=dumps,
                runs=self._runs,
                log=self._logs / "worker.log",
                name="demo",
                num_processes=self._num_processes,
                arguments=["--shard-gib=0.25"],
            ),
        )
        queue = {"STATETAP_REDIS": redis.url}
        self._statetap("plan", self._dataset, "--model", model, "--server", server.url)
        # Workers begin with the first prompt that arrives.
        extraction_begun, num_stored = time.monotonic(), self._num_stored_tokens()
        self._statetap("enqueue", environment=queue)
        self._statetap("status", "--watch", environment=queue)
        num_extracted = self._num_stored_tokens() - num_stored
        extraction_s = time.monotonic() - extraction_begun
        num_retries = self._num_retries() - num_retries
        self._statetap("verify", self._run)
        self._statetap("crosscheck", self._run, "--model", model, "--samples", "8")
        self._summary(begun, num_extracted, extraction_s, num_retries, flower)
        if self._is_kept:
            self._console.print("Everything keeps running; Ctrl-C stops it.")
            signal.pause()

    def _start_queue(self) -> tuple[LocalRedis, str]:
        """Redis and Flower. Returns Flower's address as a person needs it."""
        password = secrets.token_hex(8)
        redis = self._start(
            "Redis", lambda: LocalRedis(self._folder / "redis", self._logs / "redis.log", password)
        )
        port = None if is_listening(_FLOWER_PORT) else _FLOWER_PORT
        flower = self._start(
            "Flower",
            lambda: LocalFlower(
                redis,
                self._folder / "flower",
                self._logs / "flower.log",
                password=password,
                port=port,
            ),
        )
        address = f"{flower.url}  (user statetap, password {password})"
        self._console.print(f"Watch it in Flower: {address}", highlight=False)
        return redis, address

    def _start(self, name: str, make: Callable[[], S]) -> S:
        service = self._step(name, make)
        self._stack.callback(service.stop)
        return service

    def _step(self, name: str, make: Callable[[], T]) -> T:
        begun = time.monotonic()
        with self._console.status(f"{name} …"):
            made = make()
        self._console.print(f"[green]✓[/] {name} ({time.monotonic() - begun:.0f} s)")
        return made

    def _statetap(
        self, command: str, *arguments: str | Path, environment: dict[str, str] | None = None
    ) -> None:
        """Shows and runs one command."""
        line = [command, *map(str, arguments)]
        if command in {"plan", "enqueue", "status"}:
            line += ["--run", str(self._run)]
        self._console.print(f"\n[bold]$ statetap {' '.join(line)}[/]", highlight=False)
        program = Path(sys.executable).parent / "statetap"
        subprocess.run(  # noqa: S603  the project's own command
            [program, *line], check=True, env=dict(os.environ) | (environment or {})
        )

    def _num_stored_tokens(self) -> int:
        shards = self._run / "shards"
        if not shards.is_dir():
            return 0
        scanner = RunScanner(shards)
        scanner.refresh()
        return scanner.num_tokens

    def _num_retries(self) -> int:
        """Attempts that failed and were made again, a mismatch for instance; told by the log."""
        log = self._logs / "worker.log"
        return log.read_text(errors="replace").count(" failed kind=") if log.is_file() else 0

    def _summary(
        self, begun: float, num_tokens: int, extraction_s: float, num_retries: int, flower: str
    ) -> None:
        rate = (
            f"{num_tokens:,} tokens in {extraction_s:.0f} s: "
            f"{num_tokens / extraction_s:,.0f} tokens/s"
            if num_tokens
            else "nothing: every sample was stored before"
        )
        self._console.print()
        self._console.print(
            Panel(
                f"extracted  {rate}\n"
                f"mismatches and other retries: {num_retries}\n"
                f"shards     {self._run / 'shards'}\n"
                f"plan       {self._run / 'plan.parquet'}\n"
                f"logs       {self._logs}\n"
                f"Flower     {flower if self._is_kept else 'make demo KEEP=1 leaves it running'}\n"
                f"in all     {time.monotonic() - begun:.0f} s",
                title="statetap demo: every sample stored and proven",
                expand=False,
            ),
            highlight=False,
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m statetap_local.demo", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="leave everything running at the end")
    parser.add_argument("--model", choices=["smollm2", "tiny"], default="smollm2")
    parser.add_argument("--dataset", type=Path, default=_DATASET, metavar="FILE")
    parser.add_argument(
        "--folder", type=Path, default=_REPOSITORY / "demo-run", metavar="DIR", help="all its files"
    )
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="prompts in flight")
    return parser


if __name__ == "__main__":
    main()
