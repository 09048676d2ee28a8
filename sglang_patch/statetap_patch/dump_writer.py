"""The threads that write dumps, so that the scheduler never waits for a disk."""

import errno
import functools
import itertools
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

from statetap_contract import CaptureSpec, Receipt, dump_name

from statetap_patch.transfer import StagedRows, Transfer

if TYPE_CHECKING:
    from statetap_patch.capture import Capture

logger = logging.getLogger(__name__)

#: More than one, for servers whose prefill is faster than one thread checksums and writes; both
#: release the interpreter's lock.
NUM_THREADS: Final = 2

_STATUS_BY_ERRNO: Final = {errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EEXIST: 409}

#: Something to do for a capture, in the thread of its lane.
Work: TypeAlias = "tuple[Capture, Callable[[], None]]"


class DumpWriter:
    """Owns the writer threads. One per scheduler process that answers clients."""

    def __init__(
        self,
        folder: Path,
        spec: CaptureSpec,
        *,
        transfer: Transfer,
        sglang_version: str,
        patch_version: str,
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.host = socket.gethostname()
        self.sglang_version = sglang_version
        self.patch_version = patch_version
        self.transfer = transfer
        self.num_published = 0
        self.num_failed = 0
        #: Set whenever some capture ended; the idle scheduler waits on it.
        self.settled = threading.Event()
        self._counting = threading.Lock()
        self._queues: tuple[SimpleQueue[Work], ...] = tuple(
            SimpleQueue() for _ in range(NUM_THREADS)
        )
        self._lanes = itertools.cycle(range(NUM_THREADS))
        self._threads = tuple(
            threading.Thread(
                target=self._run, args=(queue,), name=f"statetap-writer-{lane}", daemon=True
            )
            for lane, queue in enumerate(self._queues)
        )
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether dumps can still be written."""
        return all(thread.is_alive() for thread in self._threads)

    def next_lane(self) -> int:
        """The thread of the next capture: all rows of one go through the same, in order."""
        return next(self._lanes)

    def draft_receipt(self, capture: "Capture") -> Receipt:
        """The receipt of a capture's dump, but for the checksum of its rows."""
        return Receipt(
            key=capture.key,
            attempt=capture.attempt,
            path=str(self.folder / dump_name(capture.key)),
            host=self.host,
            spec_digest=self.spec.digest,
            num_tokens=capture.num_rows,
            row_width=self.spec.row_width,
            dtype=self.spec.dtype,
            layers=self.spec.layers,
            norm=self.spec.norm,
            token_digest=capture.token_digest(),
            states_xxh3="0" * 16,
            sglang_version=self.sglang_version,
            patch_version=self.patch_version,
        )

    def open(self, capture: "Capture") -> None:
        """Has the capture's reserved space taken over, before any of its rows."""
        self._queues[capture.lane].put((capture, capture.open_file))

    def enqueue(self, capture: "Capture", first_row: int, staged: StagedRows) -> None:
        """Hands rows to the capture's thread, which gives their buffer back."""
        write = functools.partial(self._write, capture, first_row, staged)
        self._queues[capture.lane].put((capture, write))

    def on_published(self) -> None:
        """A dump became visible."""
        with self._counting:
            self.num_published += 1
        self.settled.set()

    def on_failed(self, capture: "Capture") -> None:
        """A capture failed: its file is dropped by the thread that owns it."""
        with self._counting:
            self.num_failed += 1
        self._queues[capture.lane].put((capture, capture.drop_file))
        self.settled.set()

    def _run(self, queue: "SimpleQueue[Work]") -> None:
        while True:
            capture, work = queue.get()
            try:
                work()
            except OSError as error:
                logger.warning("the dump of %s: %s", capture.key, error)
                status = _STATUS_BY_ERRNO.get(error.errno or 0, 500)
                capture.fail(f"cannot write the dump: {error}", status)
            except Exception as error:  # the thread must outlive any single capture
                logger.exception("writing the dump of %s failed", capture.key)
                capture.fail(f"{type(error).__name__}: {error}")
            # The last reference to a vanished request's capture takes its file along.
            del capture, work

    def _write(self, capture: "Capture", first_row: int, staged: StagedRows) -> None:
        try:
            capture.write(first_row, staged)
        finally:
            self.transfer.give_back(staged)
