"""Stage: a small run, its services, and a shell in which docs/runbook.md is followed."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
from statetap_local.service import Service
from statetap_local.services import (
    SERVER_ENVIRONMENT,
    LocalRedis,
    LocalServer,
    LocalWorker,
    redis_program,
)

from .runbook_page import RunbookPage

#: Programs that go on until they are stopped; all others end.
_SERVICES: Final = ("statetap-sglang", "statetap-worker", "redis-server", "celery flower")

#: Seconds for one command, or for a run.
PATIENCE_S: Final = 240.0

NUM_PROMPTS: Final = 12
LAYERS: Final = "2,4,5"

PAGE: Final = RunbookPage.read(Path(__file__).resolve().parents[2] / "docs/runbook.md")


class Stage:
    """A run of a dozen prompts, its services, and a shell in which the page is followed."""

    def __init__(
        self, end: ExitStack, folder: Path, repository: Path, model: Path, dumps: Path
    ) -> None:
        self._end = end
        # The server's first: its statetap-sglang is the one that can start.
        programs = (SERVER_ENVIRONMENT / "bin", Path(sys.executable).parent, redis_program().parent)
        path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
        #: Of the shell, beside this process's own.
        self.variables = {"PATH": path, "OMP_NUM_THREADS": "1"}
        self.folder = folder
        self.model = model
        self.dumps = dumps
        self.runs = folder / "runs"
        self.runs.mkdir()
        self.run = self.runs / "mine"
        self.redis = LocalRedis(folder / "redis", folder / "redis.log", "s3cret-word")
        end.callback(self.redis.stop)
        lines = (repository / "examples/data/conversations.jsonl").read_text().splitlines()
        self.dataset = folder / "mine.jsonl"
        # The shortest: a server on two cores takes seconds for the long ones.
        self.dataset.write_text("\n".join(sorted(lines, key=len)[:NUM_PROMPTS]) + "\n")
        self.set(
            STATETAP_REDIS=self.redis.url,
            DUMPS=dumps,
            MODEL=model,
            RUNS=self.runs,
            RUN=self.run,
            DATASET=self.dataset,
        )
        #: What the page started, the newest last.
        self.started: list[Service] = []

    def set(self, **variables: object) -> None:
        """Sets variables of the shell."""
        self.variables |= {name: str(value) for name, value in variables.items()}

    def serve(self, server: LocalServer) -> None:
        """Names the server that commands speak of."""
        self.server = server
        self.set(SERVER=server.url, PORT=server.port)

    def start_server(self, *arguments: str) -> LocalServer:
        """Starts a server of this stage's own."""
        server = LocalServer(
            self.model, self.dumps, self.folder / "server.log", arguments=arguments
        )
        self._end.callback(server.stop)
        self.serve(server)
        return server

    def start_worker(self, name: str = "gpu-7") -> LocalWorker:
        """Starts a worker as a person did before the page was needed."""
        worker = LocalWorker(
            self.server,
            self.redis,
            dumps=self.dumps,
            runs=self.runs,
            log=self.folder / f"{name}.log",
            name=name,
            num_processes=2,
        )
        self._end.callback(worker.stop)
        self.set(WORKER=worker.pid)
        return worker

    def plan_and_enqueue(self, run: str = "mine") -> None:
        """Fills the queue with a run."""
        self.type(f"statetap enqueue $DATASET --run $RUNS/{run} --model $MODEL --layers {LAYERS}")

    def follow(
        self,
        heading: str,
        before: Mapping[str, Callable[[], None]] | None = None,
        replace: Mapping[str, str] | None = None,
    ) -> str:
        """Types what a section says, line by line.

        Args:
            heading: of the section.
            before: what happens before the first line that begins with a word.
            replace: words that are others on this machine.

        Returns:
            What all of it printed.
        """
        printed = ""
        todo = dict(before or {})
        for written in PAGE.sections[heading]:
            line = written
            for word, other in (replace or {}).items():
                line = line.replace(word, other)
            if line.startswith("export "):
                self.set(**dict(re.findall(r"(\w+)=(\S+)", self._filled(line))))
                continue
            for word in [word for word in todo if line.startswith(word)]:
                todo.pop(word)()
            if line.startswith(_SERVICES):
                self._start(line)
            else:
                printed += self.type(line)
        assert not todo, f"no line begins with {list(todo)}"
        return printed

    def type(self, line: str) -> str:
        """Runs a line that ends; gives what it printed, and fails when it fails."""
        ended = subprocess.run(
            ["bash", "-o", "pipefail", "-u", "-c", line],
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}"
        return ended.stdout

    def numbers(self, run: str = "mine") -> dict[str, Any]:
        """What ``status`` says."""
        found: dict[str, Any] = json.loads(self.type(f"statetap status --run $RUNS/{run} --json"))
        return found

    def wait_stored(self, num_samples: int = NUM_PROMPTS, run: str = "mine") -> None:
        """Waits until so many samples are stored."""
        self.wait_for(lambda: self.numbers(run)["stored"] == num_samples, f"{num_samples} samples")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Waits for something that happens by itself."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"waited in vain for {what}; see {self.folder}"
            time.sleep(0.2)

    def assert_whole(self, runs: Path | None = None) -> None:
        """Every prompt is stored once, and proven."""
        self.wait_stored()
        assert f"{NUM_PROMPTS} samples in " in self.type(f"statetap verify {runs or '$RUNS'}/mine")

    def _start(self, line: str) -> None:
        log = self.folder / f"started-{len(self.started)}.log"
        line = f"exec {line}"
        service = Service(line, ["bash", "-u", "-c", line], log, self.variables)
        self._end.callback(service.stop)
        self.started.append(service)
        if "statetap-worker" in line:
            self.set(WORKER=service.pid)
        if "statetap-sglang" in line:
            (port,) = re.findall(r"--port \$(\w+)", line)
            url = f"http://127.0.0.1:{self.variables[port]}/health"
            service.wait_until(lambda: answers(url), PATIENCE_S)

    def _filled(self, line: str) -> str:
        return re.sub(r"\$(\w+)", lambda match: self.variables[match[1]], line)


def answers(url: str) -> bool:
    """Whether something serves a page there."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False
