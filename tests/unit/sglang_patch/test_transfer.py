"""Rows on their way from a batch into buffers of the ring."""

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
        ring.give_back(piece.buffer)
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
