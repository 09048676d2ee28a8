"""What one worker process owns: its connection to the server, its shards, its ledgers."""

import time
from typing import Final

from statetap_contract import (
    Job,
    MissingError,
    ServerCapture,
    StatetapError,
    StopError,
    TransientError,
)
from statetap_store import Provenance, ShardSet
from statetap_store.file_bytes import make_folders

from statetap_worker.announcer import Announcer
from statetap_worker.ledger import bury
from statetap_worker.pipeline import Outcome, Pipeline
from statetap_worker.server import MENDED_BY_TIME, Server
from statetap_worker.settings import WorkerSettings

#: Seconds to wait for a server that went away; loading a large model takes minutes.
_OUTAGE_S: Final = 600.0


class WorkerProcess:
    """Created in each child after the fork: no file or socket crosses it.

    ``slot`` is stable: the child that replaces a dead one gets its slot, hence its shards.
    """

    def __init__(self, settings: WorkerSettings, capture: ServerCapture, slot: int) -> None:
        self._settings = settings
        self._capture = capture
        self._slot_name = f"{settings.name}-{slot:02d}"
        self._server = Server(settings.server_url)
        #: Whether the server is known to be the one that the worker was started for.
        self._has_shaken_hands = False
        self._shards: dict[str, ShardSet] = {}
        self._pipeline = Pipeline(self._server, capture.spec, settings.dumps, self._shards_of)
        #: In one process of the worker: it announces what all of them store.
        self._announcer: Announcer | None = None
        if slot == 0:
            self._announcer = Announcer(settings, capture.spec.digest)
            self._announcer.start()

    def extract(self, job: Job) -> Outcome:
        """See ``Pipeline.extract``. Shakes hands before the first job, and after every outage."""
        if not self._has_shaken_hands:
            self._shake_hands()
        return self._pipeline.extract(job)

    def wait_for_server(self, at_least_s: float) -> None:
        """Waits until the server is ready again.

        Raises:
            MissingError: it is not, after ten minutes.
        """
        self._has_shaken_hands = False
        time.sleep(at_least_s)
        self._server.wait_until_ready(_OUTAGE_S)

    def give_up(self, run: str, key: str, error: StatetapError, attempts: int) -> None:
        """Writes a sample to the run's ledger. Raises OSError when that cannot be done."""
        bury(self._settings, self._slot_name, run, key, error, attempts)

    def close(self) -> None:
        """Closes shards and connections; what was committed is durable without it."""
        for shards in self._shards.values():
            shards.close()
        self._shards.clear()
        self._server.close()
        if self._announcer is not None:
            self._announcer.close()

    def _shake_hands(self) -> None:
        """Makes sure that the server still captures what the worker was started for.

        Raises:
            TransientError: kind ``server-unreachable``.
            StopError: kind ``spec-differs``, or those of ``agreed_capture``.
        """
        try:
            capture = self._server.handshake()
        except MissingError as error:
            if error.kind in MENDED_BY_TIME:
                raise TransientError("server-unreachable", error.message) from error
            raise StopError(error.kind, error.message) from error
        if capture.spec != self._capture.spec:
            raise StopError(
                "spec-differs",
                f"the server at {self._server.url} now captures {capture.spec}, this worker was "
                f"started for {self._capture.spec}; start another worker for it",
            )
        self._has_shaken_hands = True

    def _shards_of(self, job: Job) -> ShardSet:
        """The shards of the job's run, with the provenance of its first job: a run has one plan."""
        run = job.run
        if run not in self._shards:
            capture = self._capture
            folder = self._settings.runs / run / "shards"
            try:
                make_folders(folder, 2)
            except OSError as error:
                raise StopError(
                    "run-folder", f"cannot make {folder}: {error.strerror}; check the disk"
                ) from error
            self._shards[run] = ShardSet(
                folder,
                writer_name=self._slot_name,
                spec=capture.spec,
                provenance=Provenance(
                    run=run,
                    worker=self._slot_name,
                    host=capture.host,
                    sglang_version=capture.sglang_version,
                    patch_version=capture.patch_version,
                    raw_layer_ids=capture.raw_layer_ids,
                    tokenizer_digest=job.tokenizer_digest,
                    template_digest=job.template_digest,
                ),
                shard_bytes=self._settings.shard_bytes,
            )
        return self._shards[run]
