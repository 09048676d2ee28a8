"""The states of one captured request, from its first row to its receipt or its failure."""

import logging
import threading
from array import array
from typing import TYPE_CHECKING

from statetap_contract import CaptureRequest, Prompt, Receipt

from statetap_patch.dump_file import DumpFile
from statetap_patch.placement import RowGapError, place

if TYPE_CHECKING:
    import torch

    from statetap_patch.dump_writer import DumpWriter
    from statetap_patch.transfer import StagedRows

logger = logging.getLogger(__name__)


class Capture:
    """One attempt at one prompt. Ends exactly once: with a receipt or with an error.

    The scheduler thread calls ``take_rows``, one writer thread calls ``open_file``, ``write`` and
    ``drop_file``; either may call ``fail``.
    """

    def __init__(
        self,
        writer: "DumpWriter",
        request: CaptureRequest,
        attempt: str,
        token_ids: list[int],
    ) -> None:
        self._writer = writer
        self._prompt = Prompt(array("i", token_ids), ())
        self.key = request.key
        self.attempt = attempt
        self.num_rows = request.num_tokens
        self._next_row = 0  # scheduler thread: first row not handed over yet
        self._file: DumpFile | None = None  # writer thread
        #: The writer thread that all rows of this capture go through, in order.
        self.lane = writer.next_lane()
        self._lock = threading.Lock()
        self.receipt: Receipt | None = None
        self.error: str | None = None
        self.error_status = 500

    @property
    def is_open(self) -> bool:
        """Whether the capture has neither ended nor failed."""
        return self.receipt is None and self.error is None

    @property
    def num_missing_rows(self) -> int:
        """Rows that the model has not computed yet."""
        return self.num_rows - self._next_row

    def fail(self, message: str, status: int = 500) -> None:
        """Ends the capture with an error, unless it has ended; ``status`` is the HTTP status."""
        with self._lock:
            if not self.is_open:
                return
            self.error, self.error_status = f"capture of {self.key}: {message}", status
        logger.warning("%s", self.error)
        self._writer.on_failed(self)

    def take_rows(
        self,
        *,
        prefix: int,
        length: int,
        batch_start: int,
        input_ids: "torch.Tensor",
        slots: "tuple[torch.Tensor, ...]",
    ) -> None:
        """Takes what is new for this prompt from one batch.

        Runs inside the forward stream: the copy is ordered before any reuse of the buffers.

        Args:
            prefix: position in the sequence of the request's first row in the batch.
            length: rows of the request in the batch.
            batch_start: where they begin.
            input_ids: [rows of the batch], what the model was fed.
            slots: aux states [rows, K*H] and last hidden state [rows, H].
        """
        try:
            placement = place(
                prefix=prefix,
                length=length,
                batch_start=batch_start,
                next_row=self._next_row,
                num_rows=self.num_rows,
            )
            if not placement.num_rows:
                return
            rows = range(placement.batch_row, placement.batch_row + placement.num_rows)
            for staged in self._writer.transfer.stage(slots, input_ids, rows):
                self._writer.enqueue(self, self._next_row, staged)
                self._next_row += len(staged.fed_ids)
        except RowGapError as gap:
            self.fail(str(gap))
        except TimeoutError as error:
            self.fail(str(error), 503)
        except Exception as error:  # this capture may fail, the others of the batch must not
            logger.exception("taking rows of %s failed", self.key)
            self.fail(f"{type(error).__name__}: {error}")

    def open_file(self) -> None:
        """Writer thread: takes over the space that was reserved at admission."""
        if not self.is_open:
            return
        try:
            self._file = DumpFile(self._writer.folder, self._writer.draft_receipt(self))
        except FileNotFoundError:
            # Admission gave it back: the client went before the scheduler had the request.
            self.fail("the request ended before it began", 499)

    def write(self, first_row: int, staged: "StagedRows") -> None:
        """Writer thread: proves the rows' token ids, writes them, publishes after the last one."""
        import torch  # noqa: PLC0415  only beside SGLang

        staged.wait()  # first: the buffer is given back whatever becomes of its rows
        if not self.is_open or self._file is None:
            return
        end = first_row + len(staged.fed_ids)
        fed = staged.fed_ids.numpy().tobytes()
        if fed != self._prompt.token_bytes()[4 * first_row : 4 * end]:
            self.fail(f"rows {first_row} to {end - 1} were computed from other tokens")
            return
        rows = staged.states.view(torch.uint8).numpy().data.cast("B")
        self._file.write(first_row, fed, rows)
        if end == self.num_rows:
            # Outside the lock: a hung disk must not hang the scheduler.
            receipt = self._file.publish()
            self._file = None
            with self._lock:
                # A capture that failed meanwhile keeps its error; its retry finds the dump.
                if self.is_open:
                    self.receipt = receipt
            self._writer.on_published()

    def token_digest(self) -> str:
        """Digest of the prompt, which equals that of the fed ids once all rows are proven."""
        return self._prompt.token_digest()

    def drop_file(self) -> None:
        """Writer thread: gives back the space of a failed capture."""
        if self._file is not None:
            self._file.discard()
            self._file = None
