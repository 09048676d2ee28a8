"""The host memory that rows pass through on their way from the model to a dump."""

import threading
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

#: Bytes of a buffer: large enough for a transfer at full speed, small enough that short prompts
#: do not waste it.
BUFFER_BYTES: Final = 4 << 20

#: 1 GiB in all: what a busy server computes while the disk takes a breath.
NUM_BUFFERS: Final = 256

#: Seconds the scheduler waits for a buffer before a capture fails.
_WAIT_S: Final = 10.0


class Ring:
    """Buffers of equal size, allocated once. Pinned memory that is allocated per batch only grows.

    The scheduler thread takes buffers, the writer threads give them back. A full ring is the only
    thing that the scheduler ever waits for.
    """

    def __init__(
        self,
        *,
        is_pinned: bool,
        num_buffers: int = NUM_BUFFERS,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        if buffer_bytes % 16:
            raise ValueError(f"buffers of {buffer_bytes} bytes would not be aligned")
        # Imported here: a server whose plugin is installed but idle must not need it this early.
        import torch  # noqa: PLC0415

        self.buffer_bytes = buffer_bytes
        # One allocation: page-locking is slow, and the allocator rounds each block up. Without
        # pinning, pages that are never used cost nothing.
        memory = torch.empty(num_buffers, buffer_bytes, dtype=torch.uint8, pin_memory=is_pinned)
        self._free = deque(memory)  # one view a buffer
        self._room = threading.Condition()
        #: Whether the last one who asked waited in vain.
        self._is_stuck = False

    def take(self) -> "torch.Tensor | None":
        """A buffer [buffer_bytes] uint8; None when the writers gave none back for too long."""
        with self._room:
            # A disk that hangs is waited for once, not once a capture.
            wait_s = 0.0 if self._is_stuck else _WAIT_S
            self._is_stuck = not self._room.wait_for(lambda: bool(self._free), wait_s)
            # The one given back last is the one most likely to be in the processor's cache.
            return None if self._is_stuck else self._free.pop()

    def give_back(self, buffer: "torch.Tensor") -> None:
        """Makes a taken buffer free again."""
        with self._room:
            self._free.append(buffer)
            self._room.notify()
