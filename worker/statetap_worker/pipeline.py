"""From a job to a sample in a shard. No Celery here: this is what a worker does, in order."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from statetap_contract import Job, MismatchError, Receipt, ServerCapture, StopError, record_of
from statetap_store import ShardSet

from statetap_worker.asking.server import Server
from statetap_worker.failing.recall import Recall, Urgency
from statetap_worker.proving.dump import delete_dump
from statetap_worker.proving.validate import claimed_dump, prove_dump


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a job; small, because Flower shows it."""

    key: str
    num_tokens: int
    #: False when the sample was there already.
    is_new: bool
    #: Milliseconds in the server, proving, and everything else until the sample is durable.
    server_ms: float
    prove_ms: float
    store_ms: float

    @classmethod
    def found(cls, job: Job) -> Self:
        """The sample of this job was there."""
        return cls(job.key, job.prompt.num_tokens, False, 0.0, 0.0, 0.0)

    def to_json(self) -> dict[str, object]:
        return record_of(self)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One worker process's way from a job to a stored sample."""

    server: Server
    #: What the server said of itself.
    capture: ServerCapture
    #: The server's dump folder, as this host sees it.
    dumps: Path
    #: Gives the shards of a job's run.
    shards_of: Callable[[Job], ShardSet]
    #: May end the wait for the server's answer.
    recall: Recall

    def extract(self, job: Job) -> Outcome:
        """Extracts, proves and stores one prompt; returns once the sample is durable.

        Doing it twice stores it once.

        Raises:
            RetryError, RejectError, StopError: see ``retry.decide``.
            Recalled: the worker was told twice to stop.
        """
        if job.spec_digest != self.capture.spec.digest:
            raise StopError(
                "spec-differs",
                f"job {job.key} wants spec {job.spec_digest}, the server at {self.server.url} "
                f"captures {self.capture.spec.digest}",
            )
        shards = self.shards_of(job)
        if self.is_stored(job):
            # Stored before its message was acknowledged; the dump may have been left behind.
            delete_dump(self.dumps, job.key)
            return Outcome.found(job)

        begun = time.monotonic()
        with self.recall.interrupts(Urgency.ASKING):
            receipt = self.server.capture(job)
        answered = time.monotonic()
        prove_s = self._append_proven(shards, job, receipt)
        shards.commit()
        # Only now is nothing lost when the dump goes. It goes before the acknowledgement: a
        # message that comes again finds the sample by its key and needs no dump.
        delete_dump(self.dumps, job.key)
        stored = time.monotonic()
        return Outcome(
            job.key,
            job.prompt.num_tokens,
            True,
            *(
                round(1000 * seconds, 1)
                for seconds in (answered - begun, prove_s, stored - answered - prove_s)
            ),
        )

    def is_stored(self, job: Job) -> bool:
        """Whether the sample is in a shard of its run, durably."""
        return job.key in self.shards_of(job)

    def _append_proven(self, shards: ShardSet, job: Job, receipt: Receipt) -> float:
        """Proves a dump and appends it, while the disk is at work on it; seconds of proving.

        One that fails is deleted, or the retry would be given it again.
        """
        watch = _Watch()
        try:
            with watch:
                dump = claimed_dump(self.dumps, receipt, job, self.capture)

            def prove() -> None:
                with watch:
                    prove_dump(dump, receipt, job, self.capture.spec)

            shards.append(
                job.key,
                dump.token_ids,
                np.frombuffer(job.prompt.loss_mask(), np.uint8),
                dump.states,
                # The server's own checksum goes along with the sample, so that ``verify`` proves
                # the whole way from the model's memory to the disk.
                states_xxh3=int(receipt.states_xxh3, 16),
                proof=prove,
            )
        except MismatchError:
            delete_dump(self.dumps, job.key)
            raise
        return watch.seconds


class _Watch:
    """Adds up the seconds inside its contexts."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self._begun = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._begun
