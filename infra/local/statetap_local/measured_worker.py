"""A real worker beside a real server and a real Redis, to be measured from outside."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import numpy as np
import numpy.typing as npt
from statetap_contract import Job, Prompt, agreed_capture, queue_name
from statetap_producer.queueing.envelope import Envelope
from statetap_store import ShardReader

from statetap_local.services import LocalRedis, LocalServer, LocalWorker


class MeasuredWorker:
    """A worker with a server and a queue of its own, in which nothing waits.

    Args:
        model: what the server serves.
        num_processes: of the worker; prompts in flight.
        num_threads: of one matrix product of the server.
        folder: where shards are written, for a commit costs what it costs on that disk; None for
            where temporary files go.
    """

    def __init__(
        self, model: Path, *, num_processes: int, num_threads: int = 1, folder: Path | None = None
    ) -> None:
        with ExitStack() as stack:
            shared_memory = tempfile.TemporaryDirectory(prefix="statetap-bench-", dir="/dev/shm")
            #: The server's dump folder.
            self.dumps = Path(stack.enter_context(shared_memory))
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
            self._runs = place / "runs"
            self._runs.mkdir()
            self.server = LocalServer(
                model, self.dumps, place / "server.log", num_threads=num_threads
            )
            stack.callback(self.server.stop)
            #: What the server says of itself.
            self.capture = agreed_capture(
                httpx.get(f"{self.server.url}/server_info").json(), self.server.url
            )
            #: Of its queue, and of the events that it sends.
            self.redis = LocalRedis(place / "redis", place / "redis.log", "no-secret")
            stack.callback(self.redis.stop)
            self._queue = queue_name(self.capture.spec.digest)
            self._envelope = Envelope(self.capture.spec.digest)
            self._worker = LocalWorker(
                self.server,
                self.redis,
                dumps=self.dumps,
                runs=self._runs,
                log=place / "worker.log",
                num_processes=num_processes,
                arguments=["--shard-gib=1"],
            )
            stack.callback(self._worker.stop)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def extract(self, run: str, prompts: Sequence[Prompt], timeout_s: float) -> float:
        """Gives the worker all prompts at once; seconds until the last one is acknowledged.

        Raises:
            MissingError: kind ``service-failed``: the worker ended, or has not stored all in time.
        """
        begun = self.give(run, prompts)
        self._worker.wait_until(lambda: self._has_stored(run, len(prompts)), timeout_s)
        return time.perf_counter() - begun

    def give(self, run: str, prompts: Sequence[Prompt]) -> float:
        """Gives the worker all prompts at once; when that was, by ``time.perf_counter``."""
        digest = self.capture.spec.digest
        messages = [self._envelope.wrap(Job.of(run, digest, prompt)) for prompt in prompts]
        with self.redis.client() as client:
            begun = time.perf_counter()
            client.lpush(self._queue, *messages)
        return begun

    def written_ns(self, run: str) -> npt.NDArray[np.int64]:
        """When each sample of a run was written, ascending: [samples], nanoseconds since 1970."""
        times: list[int] = []
        for path in (self._runs / run / "shards").glob("*.h5"):
            with ShardReader(path) as reader:
                times += (entry.time_ns for entry in reader.samples)
        return np.array(sorted(times), np.int64)

    def _has_stored(self, run: str, num_prompts: int) -> bool:
        if self.redis.num_messages(self._queue):
            return False
        # A message that is being taken this very moment is in no place.
        return len(self.written_ns(run)) == num_prompts
