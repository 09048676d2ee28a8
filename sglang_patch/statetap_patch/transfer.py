"""Copies rows out of the model's memory into buffers of the ring.

On a GPU in two steps. SGLang's output buffers are rewritten by the next forward pass, which does
not wait for other streams; hence a clone on the forward stream, in order with everything that
reads or writes them. The copy to the host then runs on a stream of its own, beside the next
forward pass. On a CPU one copy does both.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statetap_contract import CaptureSpec

from statetap_patch.ring import Ring

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Consecutive rows of one prompt in a buffer of the ring."""

    #: [num_rows, row_width] in the spec's dtype, on the host.
    states: "torch.Tensor"
    #: [num_rows] int32: what the model was fed in these very rows.
    fed_ids: "torch.Tensor"
    #: The buffer that both are views of.
    buffer: "torch.Tensor"
    #: Event of the device: the copy has ended. None where it ended before this was made.
    copied: Any = None

    def wait(self) -> None:
        """Blocks until the rows are there. For writer threads, never for the scheduler."""
        if self.copied is not None:
            self.copied.synchronize()


class Transfer:
    """The way of rows into one ring. The scheduler thread stages, writer threads give back."""

    def __init__(self, ring: Ring, spec: CaptureSpec, cuda: Any = None) -> None:
        """Prepares for rows of one spec.

        Args:
            ring: where rows go; pinned when they come from a device.
            spec: their width and dtype.
            cuda: ``torch.cuda`` when the model runs on a device, else None.

        Raises:
            ValueError: a row does not fit into a buffer.
        """
        # Imported here: a server whose plugin is installed but idle must not need it this early.
        import torch  # noqa: PLC0415

        self._ring = ring
        self._dtype = getattr(torch, spec.dtype)
        self._row_width = spec.row_width
        self._row_bytes = spec.row_bytes
        self._max_rows = ring.buffer_bytes // (spec.row_bytes + 4)
        if not self._max_rows:
            raise ValueError(f"a row of {spec.row_bytes} bytes does not fit into a buffer")
        # From the end, where they are aligned whatever the width of a row.
        self._ids_offset = ring.buffer_bytes - 4 * self._max_rows
        self._cuda = cuda
        self._stream: Any = None if cuda is None else cuda.Stream()
        #: Copies under way, oldest first: their end, and the clones that they read.
        self._copying: deque[tuple[Any, tuple[torch.Tensor, ...]]] = deque()

    def stage(
        self, slots: "tuple[torch.Tensor, ...]", input_ids: "torch.Tensor", rows: range
    ) -> Iterator[StagedRows]:
        """Copies rows of a batch, as many buffers of them as it takes, in order.

        Runs inside the forward stream. Each piece must be handed to a writer before the next is
        asked for, or a ring smaller than the rows would never empty.

        Args:
            slots: aux states [rows of the batch, K*H] and last hidden state [rows, H].
            input_ids: [rows of the batch], what the model was fed.
            rows: which rows of the batch.

        Raises:
            ValueError: the rows are not there, or are not of the spec's width and dtype.
            TimeoutError: the writers gave no buffer back.
        """
        self._check(slots, input_ids, rows)
        for first in range(rows.start, rows.stop, self._max_rows):
            piece = slice(first, min(first + self._max_rows, rows.stop))
            buffer = self._ring.take()
            if buffer is None:
                raise TimeoutError("the writer threads are too slow, or hang on the disk")
            try:
                staged = self._copy([slot[piece] for slot in slots], input_ids[piece], buffer)
            except BaseException:  # the device may be out of memory
                if self._stream is not None:
                    self._stream.synchronize()  # a copy may be under way into the buffer
                self._ring.give_back(buffer)
                raise
            yield staged

    def give_back(self, staged: StagedRows) -> None:
        """Makes the buffer of rows that were written, or are not wanted, free again.

        Only once their copy has ended.
        """
        self._ring.give_back(staged.buffer)

    def _check(
        self, slots: "tuple[torch.Tensor, ...]", input_ids: "torch.Tensor", rows: range
    ) -> None:
        # A slice that reaches beyond its tensor is cut without a word.
        held = min(len(input_ids), *map(len, slots))
        if rows.start < 0 or rows.stop > held:
            raise ValueError(
                f"rows {rows.start} to {rows.stop - 1} of a batch that has {held} were asked for"
            )
        width = sum(slot.shape[1] for slot in slots)
        dtypes = {slot.dtype for slot in slots}
        if width != self._row_width or dtypes != {self._dtype}:
            raise ValueError(
                f"rows are {width} x {', '.join(sorted(map(str, dtypes)))}, "
                f"not {self._row_width} x {self._dtype}"
            )

    def _copy(
        self, parts: "list[torch.Tensor]", ids: "torch.Tensor", buffer: "torch.Tensor"
    ) -> StagedRows:
        import torch  # noqa: PLC0415  as above

        num_rows = len(ids)
        states = buffer[: num_rows * self._row_bytes].view(self._dtype)
        states = states.view(num_rows, self._row_width)
        fed_ids = buffer[self._ids_offset :].view(torch.int32)[:num_rows]
        if self._cuda is None:
            torch.cat(parts, dim=1, out=states)
            fed_ids.copy_(ids)
            return StagedRows(states, fed_ids, buffer)
        self._let_go_of_clones()
        cloned, cloned_ids = torch.cat(parts, dim=1), ids.to(torch.int32, copy=True)
        self._stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(self._stream):
            states.copy_(cloned, non_blocking=True)
            fed_ids.copy_(cloned_ids, non_blocking=True)
            copied = self._cuda.Event(blocking=True)  # a writer that waits leaves its core
            copied.record(self._stream)
        self._copying.append((copied, (cloned, cloned_ids)))
        return StagedRows(states, fed_ids, buffer, copied)

    def _let_go_of_clones(self) -> None:
        """Gives the device back the memory of clones that were read.

        Not later, as when the writer is through: a slow disk would hold a ring's worth of it.
        """
        while self._copying and self._copying[0][0].query():
            self._copying.popleft()
