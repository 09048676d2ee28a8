"""The thread that writes dumps, so that the scheduler never waits for a disk."""

import errno
import logging
import queue
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from statetap_contract import CaptureSpec, Receipt, dump_name

from statetap_patch.settings import QUEUE_BYTES

if TYPE_CHECKING:
    import torch

    from statetap_patch.capture import Capture

logger = logging.getLogger(__name__)

#: Seconds the scheduler waits for room in the queue before a capture fails.
_ROOM_WAIT_S: Final = 10.0

_STATUS_BY_ERRNO: Final = {errno.ENOSPC: 507, errno.EDQUOT: 507, errno.EEXIST: 409}

#: First row, fed ids [n] int32, states [n, row width].
Rows: TypeAlias = "tuple[int, torch.Tensor, torch.Tensor]"


class DumpWriter:
    """Owns the writer thread. One per scheduler process that answers clients."""

    def __init__(
        self, folder: Path, spec: CaptureSpec, sglang_version: str, patch_version: str
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.host = socket.gethostname()
        self.sglang_version = sglang_version
        self.patch_version = patch_version
        self.num_published = 0
        self.num_failed = 0
        #: Set whenever some capture ended; the idle scheduler waits on it.
        self.settled = threading.Event()
        self._room = threading.Condition()
        self._num_queued_bytes = 0
        #: Whether the last rows found no room in time.
        self._is_stuck = False
        self._queue: queue.SimpleQueue[tuple[Capture, "Rows | None"]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="statetap-writer", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether dumps can still be written."""
        return self._thread.is_alive()

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

    def enqueue(
        self, capture: "Capture", first_row: int, fed_ids: "torch.Tensor", states: "torch.Tensor"
    ) -> bool:
        """Hands rows to the thread; waits while its queue is full. False: it did not take them."""
        num_bytes = states.nbytes
        with self._room:
            # A disk that hangs is waited for once, not once a capture.
            wait_s = 0.0 if self._is_stuck else _ROOM_WAIT_S
            # Rows larger than the whole queue go alone.
            self._is_stuck = not self._room.wait_for(
                lambda: (
                    not self.is_alive
                    or not self._num_queued_bytes
                    or self._num_queued_bytes + num_bytes <= QUEUE_BYTES
                ),
                wait_s,
            )
            if self._is_stuck or not self.is_alive:
                return False
            self._num_queued_bytes += num_bytes
        self._queue.put((capture, (first_row, fed_ids, states)))
        return True

    def on_published(self) -> None:
        """A dump became visible."""
        self.num_published += 1
        self.settled.set()

    def on_failed(self, capture: "Capture") -> None:
        """A capture failed: its file is dropped by the thread that owns it."""
        self.num_failed += 1
        self._queue.put((capture, None))
        self.settled.set()

    def _run(self) -> None:
        while True:
            capture, rows = self._queue.get()
            self._serve(capture, rows)
            # The last reference to a vanished request's capture takes its file along.
            del capture, rows

    def _serve(self, capture: "Capture", rows: "Rows | None") -> None:
        if rows is None:
            try:
                capture.drop_file()
            except OSError:
                logger.exception("the unfinished dump of %s stays", capture.key)
            return
        try:
            capture.write(*rows)
        except OSError as error:
            status = _STATUS_BY_ERRNO.get(error.errno or 0, 500)
            capture.fail(f"cannot write the dump: {error}", status)
        except Exception as error:  # the thread must outlive any single capture
            logger.exception("writing the dump of %s failed", capture.key)
            capture.fail(f"{type(error).__name__}: {error}")
        finally:
            with self._room:
                self._num_queued_bytes -= rows[2].nbytes
                self._room.notify()
