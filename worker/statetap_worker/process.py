"""What one worker process owns: its connection to the server, its shards, its ledgers."""

import logging
import socket
from datetime import UTC, datetime

from statetap_contract import DeadLetter, Job, ServerCapture, StatetapError, StopError
from statetap_store import Provenance, ShardSet

from statetap_worker.ledger import Ledger
from statetap_worker.pipeline import Outcome, Pipeline
from statetap_worker.server import Server
from statetap_worker.settings import WorkerSettings

logger = logging.getLogger(__name__)


class WorkerProcess:
    """Created in each child after the fork: no file or socket crosses it.

    ``slot`` is stable: the child that replaces a dead one gets its slot, hence its shards.
    """

    def __init__(self, settings: WorkerSettings, expected: ServerCapture, slot: int) -> None:
        """Shakes hands with the server again.

        Raises:
            MissingError: the server is gone.
            StopError: kind ``spec-differs``: it captures something else than when the worker
                started.
        """
        self._settings = settings
        self._slot_name = f"{settings.name}-{slot:02d}"
        self._server = Server(settings.server_url)
        self._capture = self._server.handshake()
        if self._capture.spec != expected.spec:
            raise StopError(
                "spec-differs",
                f"the server at {settings.server_url} now captures {self._capture.spec}, this "
                f"worker was started for {expected.spec}",
            )
        self._shards: dict[str, ShardSet] = {}
        self._pipeline = Pipeline(self._server, self._capture.spec, settings.dumps, self._shards_of)

    def extract(self, job: Job) -> Outcome:
        """See ``Pipeline.extract``."""
        return self._pipeline.extract(job)

    def give_up(self, run: str, key: str, error: StatetapError, attempts: int) -> None:
        """Writes a sample to the run's ledger."""
        path = self._settings.runs / run / "ledger" / f"{self._slot_name}.jsonl"
        now = datetime.now(UTC).isoformat(timespec="seconds")
        letter = DeadLetter(key, error.kind, error.message, attempts, self._server.url, now)
        Ledger(path).append(letter)
        logger.error("dead letter key=%s kind=%s %s", key, error.kind, error.message)

    def close(self) -> None:
        """Closes the shards; what was committed is durable without it."""
        for shards in self._shards.values():
            shards.close()
        self._shards.clear()

    def _shards_of(self, run: str) -> ShardSet:
        if run not in self._shards:
            capture = self._capture
            folder = self._settings.runs / run / "shards"
            folder.mkdir(parents=True, exist_ok=True)
            self._shards[run] = ShardSet(
                folder,
                writer_name=self._slot_name,
                spec=capture.spec,
                provenance=Provenance(
                    run=run,
                    worker=self._slot_name,
                    host=socket.gethostname(),
                    sglang_version=capture.sglang_version,
                    patch_version=capture.patch_version,
                    raw_layer_ids=capture.raw_layer_ids,
                ),
                shard_bytes=self._settings.shard_bytes,
            )
        return self._shards[run]
