"""What one worker process owns: its connection to the server, its shards, its ledgers."""

import hashlib
import os
import socket
import time
from contextlib import ExitStack
from typing import Final

from statetap_contract import (
    Job,
    MismatchError,
    MissingError,
    ServerCapture,
    StatetapError,
    StopError,
    TransientError,
)
from statetap_store import Provenance, ShardSet
from statetap_store.file_bytes import make_folders

from statetap_worker.announcing.announcer import Announcer
from statetap_worker.asking.server import MENDED_BY_TIME, Server
from statetap_worker.failing.company import Company
from statetap_worker.failing.in_hand import InHand
from statetap_worker.failing.key_locks import KeyLocks
from statetap_worker.failing.ledger import bury
from statetap_worker.failing.recall import Recall, Urgency
from statetap_worker.failing.sample_leases import SampleLeases
from statetap_worker.failing.tries import WORKER_LOST, TriedBefore, Tries
from statetap_worker.lease_holder import LeaseHolder
from statetap_worker.measuring.metrics import Metrics
from statetap_worker.measuring.metrics_page import MetricsPage
from statetap_worker.measuring.scrape_point import ScrapePoint
from statetap_worker.pipeline import Outcome, Pipeline
from statetap_worker.place import place_of
from statetap_worker.proving.canary import Canary
from statetap_worker.proving.dump import delete_dump
from statetap_worker.queueing.taken_messages import Pulse
from statetap_worker.settings import WORKERS_FOLDER, WorkerSettings

#: Seconds to wait for a server that went away; loading a large model takes minutes.
_OUTAGE_S: Final = 600.0

#: The file of ``KeyLocks``; no worker has such a name.
_KEYS: Final = "keys.lock"

#: No server ends and loads its model again in so few seconds.
_SHORTEST_RESTART_S: Final = 5.0


class WorkerProcess:
    """Created in each child after the fork: no file or socket crosses it.

    ``slot`` is stable: the child that replaces a dead one gets its slot, hence its shards.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        capture: ServerCapture,
        worker_id: str,
        slot: int,
        point: ScrapePoint | None,
    ) -> None:
        self._settings = settings
        self._capture = capture
        self._slot_name = f"{settings.name}-{slot:02d}"
        self._server = Server(settings.server_url, api_key=settings.api_key)
        self._canary = Canary(settings, capture, self._slot_name)
        #: Until when the server is certainly the one that hands were shaken with. By the monotonic
        #: clock: a server that was heard of just now has not been started anew.
        self._known_until_s = 0.0
        self._shards: dict[str, ShardSet] = {}
        self._tries: dict[str, Tries] = {}
        host = socket.gethostname()
        folder = settings.runs / WORKERS_FOLDER
        self._in_hand = InHand(folder / self._slot_name)
        self._company = Company(folder / _server_name(capture))
        self._keys = KeyLocks(folder / _KEYS)
        # A worker that was told to stop may be killed while its server is still at a prompt, which
        # is not to blame for that.
        self._recall = Recall(self._in_hand.clear)
        counted_in = None if point is None else point.folder
        self.metrics = Metrics(counted_in, f"{slot:02d}", capture.spec.row_bytes)
        holder = LeaseHolder.of(settings.name, host, os.getpid())
        self._leases = SampleLeases(
            settings.redis_url, capture.spec.digest, holder, place_of(settings.runs)
        )
        self._pipeline = Pipeline(
            self._server, capture, settings.dumps, self._shards_of, self._recall
        )
        if (left := self._in_hand.left) is not None:
            if (settings.runs / left.run).is_dir():
                self._tries_of(left.run).add(left.key, left.attempt, WORKER_LOST)
            # If it was stored, and its message lost, nobody comes for the dump any more.
            delete_dump(settings.dumps, left.key)
            self._in_hand.clear()
        #: In one process of the worker: it announces what all of them store.
        self._announcer: Announcer | None = None
        #: Likewise: it answers for all of them.
        self._page: MetricsPage | None = None
        self._pulse: Pulse | None = None
        if slot == 0:
            self._pulse = Pulse(settings.redis_url, worker_id)
            self._pulse.start()
            self._announcer = Announcer(settings, capture.spec.digest)
            self._announcer.start()
            if point is not None:
                self._page = MetricsPage(point, settings, capture.spec.digest)
                self._page.start()

    def extract(self, job: Job, *, is_suspect: bool) -> Outcome:
        """See ``Pipeline.extract``. Shakes hands before the first job and after every outage.

        Also after a rest, in which an outage would have passed unnoticed. A sample that was just
        stored elsewhere is left alone.

        Args:
            job: the prompt.
            is_suspect: whether it may have ended a process or a server, and is tried alone.

        Raises:
            Recalled: the worker was told to stop, and the job was not begun.
        """
        with ExitStack() as stack:
            with self._recall.interrupts(Urgency.WAITING):
                # The lock first: whoever has the lease then is elsewhere.
                stack.enter_context(self._keys.held(job.key))
                lease = stack.enter_context(self._leases.held(job.run, job.key))
                if lease.is_stored_elsewhere:
                    return Outcome.found(job)
                stack.enter_context(self._company.joined(is_alone=is_suspect))
            # After the waits, which are rests too.
            if time.monotonic() > self._known_until_s:
                self._shake_hands()
            stack.enter_context(self._in_hand.holding(job))
            stack.enter_context(self.metrics.in_flight())
            asked_s = time.monotonic()
            try:
                outcome = self._pipeline.extract(job)
            except MismatchError:
                # Perhaps it is another server by now.
                self._known_until_s = 0.0
                raise
            lease.is_stored = True
        if outcome.is_new:
            answered_s = asked_s + outcome.server_ms / 1000
            self._known_until_s = answered_s + _SHORTEST_RESTART_S
        return outcome

    def is_stored(self, job: Job) -> bool:
        """See ``Pipeline.is_stored``."""
        return self._pipeline.is_stored(job)

    def tried_before(self, job: Job) -> TriedBefore:
        """The failed tries of a job's sample."""
        return self._tries_of(job.run).of(job.key, job.attempt)

    def note_failure(self, job: Job, kind: str) -> None:
        """Counts a failed try. Raises OSError when that cannot be done."""
        self._tries_of(job.run).add(job.key, job.attempt, kind)

    def wait_for_server(self, at_least_s: float) -> None:
        """Waits until the server is ready again.

        Raises:
            MissingError: it is not, after ten minutes.
            Recalled: the worker was told to stop.
        """
        self._known_until_s = 0.0
        with self._recall.interrupts(Urgency.WAITING):
            time.sleep(at_least_s)
            self._server.wait_until_ready(_OUTAGE_S)

    def give_up(self, run: str, key: str, error: StatetapError, attempts: int) -> None:
        """Writes a sample to the run's ledger. Raises OSError when that cannot be done."""
        bury(self._settings, self._slot_name, run, key, error, attempts)
        # Its server may have left one; nobody comes for it any more.
        delete_dump(self._settings.dumps, key)
        self.metrics.buried(error.kind)

    def close(self) -> None:
        """Closes shards and connections; what was committed is durable without it."""
        for shards in self._shards.values():
            shards.close()
        self._shards.clear()
        self._leases.close()
        self._keys.close()
        self._company.close()
        self._in_hand.close()
        if self._announcer is not None:
            self._announcer.close()
        if self._page is not None:
            self._page.close()
        if self._pulse is not None:
            self._pulse.close()

    def _shake_hands(self) -> None:
        """Makes sure that the server still captures what the worker was started for.

        Raises:
            TransientError: kind ``server-unreachable``.
            MissingError: it did not compute the canary prompt in ten minutes.
            StopError: kinds ``spec-differs`` and ``server-differs``, those of ``agreed_capture``,
                or those of the canary.
            Recalled: the worker was told to stop.
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
        if capture.origin != self._capture.origin:
            raise StopError(
                "server-differs",
                f"the server at {self._server.url} is now {capture.origin}, this worker was "
                f"started for {self._capture.origin}; start it again, so that its shards say so",
            )
        with self._recall.interrupts(Urgency.WAITING):
            self._canary.wait_until_reproduced(self._server, _OUTAGE_S)
        self._known_until_s = time.monotonic() + _SHORTEST_RESTART_S

    def _tries_of(self, run: str) -> Tries:
        if run not in self._tries:
            folder = self._settings.runs / run
            self._tries[run] = Tries(folder, self._slot_name, self._settings.server_url)
        return self._tries[run]

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


def _server_name(capture: ServerCapture) -> str:
    """For a file that all processes share which ask this server, however they call it."""
    name = f"{capture.host} {capture.dumps}".encode()
    return f"server-{hashlib.blake2b(name, digest_size=8).hexdigest()}"
