"""Rows on their way from a batch into buffers of the ring."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from statetap_contract import CaptureSpec
from statetap_patch.ring import Ring
from statetap_patch.transfer import Transfer

SPEC = CaptureSpec("m", "r", (1, 3), "post", 4, "bfloat16")
ROW_BYTES = 12 * 2 + 4  # a row and its id


def batch(num_rows: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    states = torch.arange(12 * num_rows).reshape(num_rows, 12).to(torch.bfloat16)
    return (states[:, :8], states[:, 8:]), torch.arange(100, 100 + num_rows)


def test_rows_come_in_pieces_of_a_buffer() -> None:
    """In order, none twice, each with the id that it was computed from."""
    ring = Ring(is_pinned=False, num_buffers=3, buffer_bytes=4 * ROW_BYTES + 16)
    slots, ids = batch(20)
    pieces = list(Transfer(ring, SPEC).stage(slots, ids, range(5, 15)))
    assert [len(piece.fed_ids) for piece in pieces] == [4, 4, 2]
    assert torch.equal(torch.cat([piece.states for piece in pieces]), torch.cat(slots, 1)[5:15])
    assert torch.cat([piece.fed_ids for piece in pieces]).tolist() == list(range(105, 115))
    assert pieces[0].fed_ids.dtype == torch.int32


def test_pieces_do_not_share_memory_with_the_batch_or_each_other() -> None:
    """SGLang rewrites its buffers; a piece must outlive that and the next piece."""
    ring = Ring(is_pinned=False, num_buffers=2, buffer_bytes=8 * ROW_BYTES)
    transfer = Transfer(ring, SPEC)
    slots, ids = batch(8)
    expected = torch.cat(slots, 1).clone()
    (first,) = transfer.stage(slots, ids, range(8))
    for tensor in (*slots, ids):
        tensor.zero_()
    (second,) = transfer.stage(slots, ids, range(8))
    assert torch.equal(first.states, expected)
    assert not second.states.any()


def test_a_buffer_that_is_given_back_is_used_again() -> None:
    """The ring never grows."""
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)
    transfer = Transfer(ring, SPEC)
    slots, ids = batch(8)
    addresses = set()
    for _ in range(5):
        (piece,) = transfer.stage(slots, ids, range(8))
        addresses.add(piece.states.data_ptr())
        transfer.give_back(piece)
    assert len(addresses) == 1


def test_the_scheduler_waits_once_for_writers_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hung disk costs one wait, not one a capture; a buffer that comes back ends it."""
    waits: list[float] = []

    def counted(_condition: object, has_room: object, wait_s: float) -> bool:
        waits.append(wait_s)
        return bool(has_room())  # type: ignore[operator]

    monkeypatch.setattr("threading.Condition.wait_for", counted)
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)
    taken = ring.take()
    assert taken is not None
    assert [ring.take() for _ in range(3)] == [None, None, None]
    ring.give_back(taken)
    assert ring.take() is taken
    ring.give_back(taken)
    ring.take()
    assert waits[1] > 0
    assert waits[2:5] == [0, 0, 0]
    assert waits[5] > 0


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (range(3, 9), "rows 3 to 8 of a batch that has 8"),
        (range(-1, 3), "rows -1 to 2 of a batch that has 8"),
    ],
)
def test_rows_that_are_not_there_are_refused(rows: range, reason: str) -> None:
    """Python's slices would be cut, or count from the end, without a word."""
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)
    slots, ids = batch(8)
    with pytest.raises(ValueError, match=reason):
        list(Transfer(ring, SPEC).stage(slots, ids, rows))


def test_a_copy_that_fails_gives_its_buffer_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that is out of memory."""
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)
    slots, ids = batch(8)

    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "cat", no_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            list(Transfer(ring, SPEC).stage(slots, ids, range(8)))
    assert len(list(Transfer(ring, SPEC).stage(slots, ids, range(8)))) == 1


def test_a_row_that_fits_no_buffer_is_refused_at_start() -> None:
    """Not at the first request."""
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=16)
    with pytest.raises(ValueError, match="does not fit"):
        Transfer(ring, SPEC)


class Device:
    """Stands for ``torch.cuda``: what a device would do later is done at once, and written down.

    What it cannot show is that the real streams keep this order.
    """

    def __init__(self, slots: tuple[torch.Tensor, ...], ids: torch.Tensor) -> None:
        self._outputs = (*slots, ids)
        self.log: list[str] = []
        self.has_copied = False

    def Stream(self) -> SimpleNamespace:  # noqa: N802  torch's name
        return SimpleNamespace(wait_stream=self._wait, synchronize=lambda: self.log.append("drain"))

    def current_stream(self) -> str:
        return "forward"

    def Event(self, *, blocking: bool) -> SimpleNamespace:  # noqa: N802  torch's name
        assert blocking
        return SimpleNamespace(
            record=lambda _: self.log.append("record"),
            synchronize=lambda: self.log.append("synchronize"),
            query=lambda: self.has_copied,
        )

    @contextmanager
    def stream(self, _stream: object) -> Iterator[None]:
        self.log.append("enter")
        yield
        self.log.append("leave")

    def _wait(self, stream: str) -> None:
        self.log.append(f"wait for {stream}")
        # The next forward pass rewrites the outputs: the copy must not read them any more.
        for tensor in self._outputs:
            tensor.zero_()


def test_a_device_copies_a_clone_on_a_stream_of_its_own() -> None:
    """Cloned in the forward stream, awaited, copied beside it, and awaited again by the writer."""
    slots, ids = batch(8)
    device = Device(slots, ids)
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)
    expected, expected_ids = torch.cat(slots, 1), ids.tolist()
    transfer = Transfer(ring, SPEC, device)
    (piece,) = transfer.stage(slots, ids, range(8))
    assert device.log == ["wait for forward", "enter", "record", "leave"]
    assert torch.equal(piece.states, expected)
    assert piece.fed_ids.tolist() == expected_ids
    piece.wait()
    assert device.log[-1] == "synchronize"


def test_a_device_keeps_clones_until_they_are_read() -> None:
    """Not until the writer is through with their rows, and never while a copy may read them."""
    slots, ids = batch(8)
    device = Device(slots, ids)
    ring = Ring(is_pinned=False, num_buffers=8, buffer_bytes=2 * ROW_BYTES + 8)
    transfer = Transfer(ring, SPEC, device)
    assert len(list(transfer.stage(slots, ids, range(8)))) == 4
    assert len(transfer._copying) == 4
    device.has_copied = True
    list(transfer.stage(slots, ids, range(2)))
    assert len(transfer._copying) == 1


def test_a_device_that_fails_is_awaited_before_its_buffer_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy may be under way when something after it fails."""
    slots, ids = batch(8)
    device = Device(slots, ids)
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=8 * ROW_BYTES)

    def broken(**_: object) -> None:
        raise RuntimeError("no event")

    monkeypatch.setattr(device, "Event", broken)
    with pytest.raises(RuntimeError, match="no event"):
        list(Transfer(ring, SPEC, device).stage(slots, ids, range(8)))
    assert device.log[-1] == "drain"
    assert ring.take() is not None
