"""A capture and its writer threads, without SGLang: from rows to a published dump."""

import errno
import os
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch
import xxhash
from safetensors.torch import load_file
from statetap_contract import HEADER_BYTES, CaptureRequest, CaptureSpec, dump_name
from statetap_contract.dump import DumpLayout
from statetap_patch.capture import Capture
from statetap_patch.dump_file import read_receipt
from statetap_patch.dump_writer import NUM_THREADS, DumpWriter
from statetap_patch.ring import Ring
from statetap_patch.space import give_back, reserve
from statetap_patch.transfer import Transfer

KEY = "0123456789abcdef" * 2
SPEC = CaptureSpec("m", "r", (1, 3), "post", 4, "bfloat16")
IDS = [11, 12, 13, 14, 15, 16, 17]


@pytest.fixture
def writer(tmp_path: Path) -> DumpWriter:
    return new_writer(tmp_path, Ring(is_pinned=False, num_buffers=4, buffer_bytes=1 << 16))


def new_writer(folder: Path, ring: Ring) -> DumpWriter:
    return DumpWriter(
        folder, SPEC, transfer=Transfer(ring, SPEC), sglang_version="0.5.23", patch_version="0.1.0"
    )


def begin(writer: DumpWriter, attempt: str = "a1", ids: list[int] = IDS) -> Capture:
    reserve(writer.folder, attempt, DumpLayout(len(ids), 12, "bfloat16").file_bytes)
    capture = Capture(writer, CaptureRequest(KEY, len(ids), SPEC.digest), attempt, ids)
    writer.open(capture)
    return capture


def aux_and_last(num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(num_rows)
    states = torch.randn(num_rows, 12, generator=generator).to(torch.bfloat16)
    return states[:, :8], states[:, 8:]


def feed(
    capture: Capture,
    first: int,
    end: int,
    slots: tuple[torch.Tensor, torch.Tensor],
    ids: list[int] = IDS,
) -> None:
    """One batch that holds rows [first, end) of the prompt and nothing else."""
    capture.take_rows(
        prefix=first,
        length=end - first,
        batch_start=0,
        input_ids=torch.tensor(ids[first:end]),
        slots=(slots[0][first:end], slots[1][first:end]),
    )


def wait(capture: Capture, writer: DumpWriter) -> None:
    for _ in range(100):
        if not capture.is_open:
            return
        writer.settled.wait(0.1)
        writer.settled.clear()
    pytest.fail("the capture never ended")


def left(folder: Path, attempt: str) -> list[str]:
    """What is in the folder once a failed attempt has ended on both sides."""
    give_back(folder, attempt)
    for _ in range(500):
        if not list(folder.glob(".*.unfinished")):
            break
        time.sleep(0.01)
    return [file.name for file in folder.iterdir()]


@pytest.mark.parametrize("cuts", [[7], [3, 7], [1, 2, 3, 4, 5, 6, 7]])
def test_rows_end_in_the_dump_whatever_the_chunks(
    tmp_path: Path, writer: DumpWriter, cuts: list[int]
) -> None:
    """The dump holds aux states and last state side by side, the fed ids, and their checksum."""
    capture, slots, first = begin(writer), aux_and_last(7), 0
    for end in cuts:
        feed(capture, first, end, slots)
        first = end
    wait(capture, writer)
    assert capture.error is None
    tensors = load_file(tmp_path / dump_name(KEY))
    expected = torch.cat(slots, dim=1)
    assert torch.equal(tensors["states"].view(torch.int16), expected.view(torch.int16))
    assert tensors["token_ids"].tolist() == IDS
    receipt = capture.receipt
    assert receipt == read_receipt(tmp_path, KEY)
    assert receipt is not None
    assert receipt.states_xxh3 == xxhash.xxh3_64_hexdigest(
        expected.view(torch.uint8).numpy().tobytes()
    )
    assert (receipt.num_tokens, receipt.row_width, receipt.layers) == (7, 12, (1, 3))
    assert [file.name for file in tmp_path.iterdir()] == [dump_name(KEY)]


def test_a_later_change_of_the_servers_buffers_does_no_harm(
    tmp_path: Path, writer: DumpWriter
) -> None:
    """SGLang reuses its output buffers: what was taken must be a copy."""
    capture, (aux, last) = begin(writer), aux_and_last(7)
    ids = torch.tensor(IDS, dtype=torch.int32)
    kept = torch.cat((aux, last), dim=1).clone()
    capture.take_rows(prefix=0, length=7, batch_start=0, input_ids=ids, slots=(aux, last))
    for buffer in (aux, last, ids):
        buffer.zero_()
    wait(capture, writer)
    tensors = load_file(tmp_path / dump_name(KEY))
    assert torch.equal(tensors["states"], kept)
    assert tensors["token_ids"].tolist() == IDS


def test_rows_of_another_prompt_are_caught_by_their_ids(tmp_path: Path, writer: DumpWriter) -> None:
    """A slice shifted by one row has the right count, and fails all the same."""
    capture, slots = begin(writer), aux_and_last(7)
    feed(capture, 0, 7, slots, ids=[IDS[-1], *IDS[:-1]])
    wait(capture, writer)
    assert "other tokens" in str(capture.error)
    assert left(tmp_path, "a1") == []


def test_a_wrong_width_or_dtype_fails_the_request(tmp_path: Path, writer: DumpWriter) -> None:
    """Too few layers are not stored as if they were all."""
    aux, last = aux_and_last(7)
    for number, slots in enumerate([(aux[:, :4], last), (aux.float(), last.float())]):
        capture = begin(writer, f"w{number}")
        feed(capture, 0, 7, slots)
        wait(capture, writer)
        assert "not 12 x torch.bfloat16" in str(capture.error)
        assert left(tmp_path, f"w{number}") == []


def test_a_gap_fails_the_request(tmp_path: Path, writer: DumpWriter) -> None:
    """Rows that a cache served are missing, and a dump with missing rows is never published."""
    capture = begin(writer)
    feed(capture, 2, 7, aux_and_last(7))
    assert "rows 0 to 1 of 7 were never computed" in str(capture.error)
    assert left(tmp_path, "a1") == []


def test_an_abort_in_the_middle_leaves_nothing(tmp_path: Path, writer: DumpWriter) -> None:
    """The space of a half-written dump comes back."""
    capture, slots = begin(writer), aux_and_last(7)
    feed(capture, 0, 4, slots)
    capture.fail("the request was aborted", 499)
    second = begin(writer, "a2")
    feed(second, 0, 7, slots)
    wait(second, writer)
    assert second.receipt is not None
    assert left(tmp_path, "a1") == [dump_name(KEY)]


def test_a_full_disk_fails_the_request_and_spares_the_thread(
    tmp_path: Path, writer: DumpWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """507 with the reason, nothing left behind, and the next dump is written."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    capture, slots = begin(writer), aux_and_last(7)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        feed(capture, 0, 7, slots)
        wait(capture, writer)
    assert capture.error_status == 507
    assert "No space left on device" in str(capture.error)
    assert left(tmp_path, "a1") == []
    again = begin(writer, "a2")
    feed(again, 0, 7, slots)
    wait(again, writer)
    assert again.receipt is not None


def test_a_reservation_that_is_gone_or_of_another_size_fails_the_request(
    tmp_path: Path, writer: DumpWriter
) -> None:
    """Space that was given back, or reserved for another prompt, is not written to."""
    slots = aux_and_last(7)
    for attempt, status, reason in (
        ("gone", 499, "ended before it began"),
        ("short", 500, "10 bytes are reserved, not"),
    ):
        if attempt == "short":
            reserve(tmp_path, attempt, 10)
        capture = Capture(writer, CaptureRequest(KEY, 7, SPEC.digest), attempt, IDS)
        writer.open(capture)
        feed(capture, 0, 7, slots)
        wait(capture, writer)
        assert reason in str(capture.error)
        assert capture.error_status == status
        assert left(tmp_path, attempt) == []


def test_too_many_open_files_leave_no_file_behind(
    tmp_path: Path, writer: DumpWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space was taken over already when the file could not be opened."""
    open_file = os.open

    def full(path: Path, *others: int) -> int:
        if Path(path).suffix == ".unfinished":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, *others)

    monkeypatch.setattr(os, "open", full)
    capture = begin(writer)
    wait(capture, writer)
    assert "Too many open files" in str(capture.error)
    assert left(tmp_path, "a1") == []


def test_rows_larger_than_the_ring_pass_through_it(tmp_path: Path) -> None:
    """Piece by piece: the scheduler waits for the writer, and every row arrives in order."""
    # A row takes 24 bytes and its id 4: three rows a buffer, six in the ring.
    writer = new_writer(tmp_path, Ring(is_pinned=False, num_buffers=2, buffer_bytes=96))
    ids = list(range(1000, 1100))
    capture, slots = begin(writer, ids=ids), aux_and_last(100)
    feed(capture, 0, 100, slots, ids)
    wait(capture, writer)
    assert capture.error is None
    tensors = load_file(tmp_path / dump_name(KEY))
    assert torch.equal(tensors["states"], torch.cat(slots, dim=1))
    assert tensors["token_ids"].tolist() == ids


def test_rows_that_come_again_are_passed_over(tmp_path: Path, writer: DumpWriter) -> None:
    """After a retraction the first batch may hold nothing new, and less than was taken before."""
    capture, slots = begin(writer), aux_and_last(7)
    feed(capture, 0, 5, slots)
    feed(capture, 0, 3, slots)
    feed(capture, 3, 7, slots)
    wait(capture, writer)
    assert capture.error is None
    states = load_file(tmp_path / dump_name(KEY))["states"]
    assert torch.equal(states, torch.cat(slots, dim=1))


def test_a_cursor_beyond_the_batch_is_caught(tmp_path: Path, writer: DumpWriter) -> None:
    """Slices are cut by torch without a word; fewer rows are never taken for all."""
    capture, (aux, last) = begin(writer), aux_and_last(7)
    ids = torch.tensor(IDS)
    capture.take_rows(prefix=0, length=7, batch_start=1, input_ids=ids, slots=(aux, last))
    assert "rows 1 to 7 of a batch that has 7" in str(capture.error)
    assert left(tmp_path, "a1") == []


def test_the_first_dump_of_a_key_wins(tmp_path: Path, writer: DumpWriter) -> None:
    """Two attempts at one prompt end with one dump and its receipt; another prompt gets a 409."""
    slots = aux_and_last(7)
    first, second = begin(writer, "a1"), begin(writer, "a2")
    other_ids = [*IDS[:-1], 99]
    third = begin(writer, "a3", other_ids)
    for capture, ids in ((first, IDS), (second, IDS), (third, other_ids)):
        feed(capture, 0, 7, slots, ids)
        wait(capture, writer)
    assert first.receipt is not None
    assert second.receipt == first.receipt
    assert third.error_status == 409
    assert [file.name for file in tmp_path.iterdir()] == [dump_name(KEY)]


@pytest.mark.parametrize(
    "broken",
    [b"", b"short", bytes(5000), (HEADER_BYTES - 8).to_bytes(8, "little") + b"[" * HEADER_BYTES],
)
def test_a_file_that_is_no_dump_has_no_receipt(tmp_path: Path, broken: bytes) -> None:
    """A half-made file is never taken for a dump."""
    (tmp_path / dump_name(KEY)).write_bytes(broken)
    assert read_receipt(tmp_path, KEY) is None


def test_a_broken_file_under_a_key_does_not_block_it(tmp_path: Path, writer: DumpWriter) -> None:
    """What cannot be read, after an upgrade for instance, is replaced by the next dump."""
    (tmp_path / dump_name(KEY)).write_bytes(b"of another version")
    capture = begin(writer)
    feed(capture, 0, 7, aux_and_last(7))
    wait(capture, writer)
    assert capture.error is None
    assert read_receipt(tmp_path, KEY) == capture.receipt
    assert [file.name for file in tmp_path.iterdir()] == [dump_name(KEY)]


def test_a_file_that_cannot_be_removed_spares_the_thread(
    writer: DumpWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer outlives whatever becomes of a single capture."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise PermissionError("not yours")

    capture, slots = begin(writer), aux_and_last(7)
    feed(capture, 0, 4, slots)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        capture.fail("the request was aborted")
        other = begin(writer, "a2")
        feed(other, 0, 7, slots, ids=[99, *IDS[1:]])
        wait(other, writer)
    assert writer.is_alive
    third = begin(writer, "a3")
    feed(third, 0, 7, slots)
    wait(third, writer)
    assert third.receipt is not None


def test_a_full_ring_fails_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that hang cost the scheduler a wait, then a 503; later captures work again."""
    monkeypatch.setattr("statetap_patch.ring._WAIT_S", 0.01)
    ring = Ring(is_pinned=False, num_buffers=1, buffer_bytes=1 << 16)
    writer, slots = new_writer(tmp_path, ring), aux_and_last(7)
    taken = ring.take()  # as a writer does that hangs on its disk
    assert taken is not None
    stuck = begin(writer, "stuck")
    feed(stuck, 0, 7, slots)
    assert (stuck.error_status, "too slow" in str(stuck.error)) == (503, True)
    ring.give_back(taken)
    capture = begin(writer, "after")
    feed(capture, 0, 7, slots)
    wait(capture, writer)
    assert capture.receipt is not None


def test_many_captures_at_once_use_all_threads(tmp_path: Path) -> None:
    """Their rows interleave; each capture's stay in order, and the counts agree."""
    writer = new_writer(tmp_path, Ring(is_pinned=False, num_buffers=3, buffer_bytes=256))
    slots, captures = aux_and_last(60), []
    for number in range(40):
        ids = [number * 100 + row for row in range(60)]
        key = f"{number:032x}"
        attempt = f"m{number}"
        reserve(tmp_path, attempt, DumpLayout(60, 12, "bfloat16").file_bytes)
        capture = Capture(writer, CaptureRequest(key, 60, SPEC.digest), attempt, ids)
        writer.open(capture)
        captures.append((ids, capture))
    for first in range(0, 60, 7):
        for ids, capture in captures:
            feed(capture, first, min(first + 7, 60), slots, ids)
    for ids, capture in captures:
        wait(capture, writer)
        assert capture.error is None
        tensors = load_file(tmp_path / dump_name(capture.key))
        assert tensors["token_ids"].tolist() == ids
        assert torch.equal(tensors["states"], torch.cat(slots, dim=1))
    assert (writer.num_published, writer.num_failed) == (40, 0)
    assert {capture.lane for _, capture in captures} == set(range(NUM_THREADS))


def test_a_link_in_place_of_a_dump_is_replaced(writer: DumpWriter) -> None:
    """Not even one that leads to a dump of this prompt vouches for it."""
    first = begin(writer)
    feed(first, 0, 7, aux_and_last(7))
    wait(first, writer)
    path = writer.folder / dump_name(KEY)
    elsewhere = path.rename(writer.folder / "elsewhere")
    path.symlink_to(elsewhere)
    assert read_receipt(writer.folder, KEY) is None
    second = begin(writer, "a2")
    feed(second, 0, 7, aux_and_last(7))
    wait(second, writer)
    assert not path.is_symlink()
    receipt = read_receipt(writer.folder, KEY)
    assert receipt is not None
    assert receipt.attempt == "a2"


def test_a_link_in_place_of_reserved_room_is_not_written_to(writer: DumpWriter) -> None:
    """The capture fails, and what the link leads to stays as it was."""
    num_bytes = DumpLayout(len(IDS), 12, "bfloat16").file_bytes
    elsewhere = writer.folder / "elsewhere"
    elsewhere.write_bytes(bytes(num_bytes))
    (writer.folder / ".a1.reserved").symlink_to(elsewhere)
    capture = Capture(writer, CaptureRequest(KEY, len(IDS), SPEC.digest), "a1", IDS)
    writer.open(capture)
    feed(capture, 0, 7, aux_and_last(7))
    wait(capture, writer)
    assert "no regular file" in str(capture.error)
    assert elsewhere.read_bytes() == bytes(num_bytes)
    assert read_receipt(writer.folder, KEY) is None
