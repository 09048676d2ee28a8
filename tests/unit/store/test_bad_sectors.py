"""Pages that the disk does not give cost what is in them, and repair has them replaced."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import CaptureSpec, CheckError, StopError
from statetap_store import (
    Provenance,
    SampleTable,
    ShardReader,
    ShardWriter,
    repair_shard,
    seal,
    verify_shard,
)
from statetap_store.shard_file import ShardFile
from statetap_store.shard_index import find_row

Sampler = Callable[..., tuple[str, Any, Any, Any]]

MIB = 1024 * 1024
PAGE = 4096
ROWS_OF_A_PAGE = PAGE // 128
NUM_SAMPLES = 100
PLACES = {"header": 0, "slot 0": MIB, "slot 1": MIB + MIB // 2}


class BadSectors:
    """A disk whose bad pages fail every read until they are written, each as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages: set[int] = set()
        self._real_preadv, self.real_pwrite = os.preadv, os.pwrite
        monkeypatch.setattr(os, "preadv", self._preadv)
        monkeypatch.setattr(os, "pwrite", self._pwrite)

    def _preadv(self, fd: int, buffers: list[memoryview], offset: int) -> Any:
        self._check(offset, offset + sum(map(len, buffers)))
        return self._real_preadv(fd, buffers, offset)

    def _pwrite(self, fd: int, data: memoryview, offset: int) -> Any:
        end = offset + len(data)
        self.pages = {page for page in self.pages if not offset <= page <= end - PAGE}
        self._check(offset, end)
        return self.real_pwrite(fd, data, offset)

    def _check(self, start: int, end: int) -> None:
        if any(page < end and start < page + PAGE for page in self.pages):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def sectors(monkeypatch: pytest.MonkeyPatch) -> BadSectors:
    return BadSectors(monkeypatch)


@pytest.fixture
def long_shard(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> Path:
    """An open shard with the samples 0 to 99, whose index takes more than three pages."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 256 * 1024) as writer:
        for number in range(NUM_SAMPLES):
            writer.append(*numbered_sample(number))
            writer.commit()
    return path


def index_page(path: Path, number: int) -> int:
    with h5py.File(path) as hdf5:
        return int(hdf5["index"].id.get_offset()) + PAGE * number


def stored(path: Path, numbered_sample: Sampler) -> set[int]:
    """Numbers of the samples that are listed, each of which must be right."""
    numbers = set()
    with ShardReader(path) as reader:
        for entry in reader.samples:
            numbers.add(int(entry.key, 16))
            states = numbered_sample(int(entry.key, 16))[3]
            assert reader.read(entry).states.tobytes() == states.tobytes()
    return numbers


@pytest.mark.parametrize(
    ("place", "is_sealed", "kind"),
    [
        ("header", False, "header-damaged"),
        ("header", True, "header-damaged"),
        ("slot 0", False, "header-unproven"),
        ("slot 0", True, "backup-damaged"),
        ("slot 1", False, "backup-damaged"),
        ("slot 1", True, "backup-damaged"),
    ],
)
def test_header_or_copy(
    shard: Path,
    sectors: BadSectors,
    numbered_sample: Sampler,
    *,
    place: str,
    is_sealed: bool,
    kind: str,
) -> None:
    """One that cannot be read hinders no reader, is reported, and is written again by repair."""
    if is_sealed:
        seal(shard)
    whole = shard.read_bytes()
    sectors.pages = {PLACES[place]}
    assert stored(shard, numbered_sample) == set(range(10))
    (fault,) = verify_shard(shard).faults
    assert fault.kind == kind
    assert "Input/output error" in fault.message
    report = repair_shard(shard)
    assert [fault.kind for fault in report.mended] == [kind]
    assert (report.lost, report.left, sectors.pages) == ((), (), set())
    assert shard.read_bytes() == whole


@pytest.mark.parametrize("place", ["header", "slot 1"])
def test_a_writer_restores_it(
    shard: Path, sectors: BadSectors, numbered_sample: Sampler, place: str
) -> None:
    """Whoever appends puts the header and the empty slot back, as after any other damage."""
    sectors.pages = {PLACES[place]}
    with ShardWriter.open(shard) as writer:
        assert writer.append(*numbered_sample(10))
    assert sectors.pages == set()
    assert verify_shard(shard).faults == ()
    assert stored(shard, numbered_sample) == set(range(11))


@pytest.mark.parametrize("first_byte", [b"\x89", b"?"])
def test_neither_header_nor_copy(shard: Path, sectors: BadSectors, first_byte: bytes) -> None:
    """Where nothing is of use the disk is blamed, and the file is left as it is."""
    seal(shard)
    with shard.open("r+b") as file:
        file.write(first_byte)
    before = shard.read_bytes()
    sectors.pages = set(PLACES.values())
    if first_byte == b"?":
        # What can be read is no header.
        sectors.pages.remove(PLACES["header"])
    for use in (ShardReader, repair_shard):
        with pytest.raises(CheckError, match="Input/output error") as refusal:
            use(shard)
        assert refusal.value.kind == "shard-unreadable"
    assert [fault.kind for fault in verify_shard(shard).faults] == ["shard-unreadable"]
    sectors.pages = set()
    assert shard.read_bytes() == before


@pytest.mark.parametrize("is_sealed", [False, True])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_page_of_the_index(
    long_shard: Path, sectors: BadSectors, numbered_sample: Sampler, *, number: int, is_sealed: bool
) -> None:
    """Its rows are reported and given up; all other samples are read before and after."""
    if is_sealed:
        seal(long_shard)
    rows = range(number * ROWS_OF_A_PAGE, (number + 1) * ROWS_OF_A_PAGE)
    others = set(range(NUM_SAMPLES)) - set(rows)
    sectors.pages = {index_page(long_shard, number)}
    assert stored(long_shard, numbered_sample) == others
    assert len(SampleTable.scan(long_shard)) == len(others)
    faults = verify_shard(long_shard).faults
    assert [(fault.kind, fault.key) for fault in faults] == [("row-corrupt", None)] * len(rows)
    for row, fault in zip(rows, faults, strict=True):
        assert f"index row {row} of {long_shard} cannot be read" in fault.message
    report = repair_shard(long_shard)
    assert len(report.lost) == len(rows)
    assert (report.num_samples, report.left, sectors.pages) == (len(others), (), set())
    assert stored(long_shard, numbered_sample) == others
    with h5py.File(long_shard) as hdf5:
        assert hdf5["index"]["state"][rows.start : rows.stop].tolist() == [2] * len(rows)


def test_last_page_of_an_open_index(
    long_shard: Path, sectors: BadSectors, numbered_sample: Sampler
) -> None:
    """Nobody knows how many samples it held: repair frees it, and they are stored again."""
    sectors.pages = {index_page(long_shard, 3)}
    assert stored(long_shard, numbered_sample) == set(range(96))
    faults = verify_shard(long_shard).faults
    assert [fault.kind for fault in faults] == ["row-corrupt"] * ROWS_OF_A_PAGE
    report = repair_shard(long_shard)
    (fault,) = report.lost
    assert (fault.kind, fault.key) == ("row-corrupt", None)
    assert "index rows from 96 on" in fault.message
    assert (report.num_samples, report.left, sectors.pages) == (96, (), set())
    with ShardWriter.open(long_shard) as writer:
        for number in range(96, NUM_SAMPLES):
            assert writer.append(*numbered_sample(number))
    assert verify_shard(long_shard).faults == ()
    assert stored(long_shard, numbered_sample) == set(range(NUM_SAMPLES))


def test_a_writer_takes_no_place_of_rows_that_cannot_be_read(
    long_shard: Path,
    sectors: BadSectors,
    numbered_sample: Sampler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unlike what a crash left, they may hold samples that were acknowledged."""
    # A cable that is loose for a moment: what is written does not stay away.
    monkeypatch.setattr(os, "pwrite", sectors.real_pwrite)
    sectors.pages = {index_page(long_shard, 3)}
    with pytest.raises(StopError, match="cannot read") as refusal:
        ShardWriter.open(long_shard)
    assert refusal.value.kind == "shard-unreadable"
    sectors.pages = set()
    with ShardWriter.open(long_shard) as writer:
        assert writer.num_samples == NUM_SAMPLES
    assert stored(long_shard, numbered_sample) == set(range(NUM_SAMPLES))


def test_the_only_page_of_an_index(shard: Path, sectors: BadSectors) -> None:
    """A shard of whose rows none can be read is no empty shard; repair makes it one."""
    seal(shard)
    sectors.pages = {index_page(shard, 0)}
    with pytest.raises(CheckError, match="Input/output error") as refusal:
        ShardReader(shard)
    assert refusal.value.kind == "shard-unreadable"
    assert [fault.kind for fault in verify_shard(shard).faults] == ["shard-unreadable"]
    report = repair_shard(shard)
    assert (len(report.lost), report.num_samples, report.left) == (10, 0, ())


def test_rows_that_cannot_be_read_any_more(
    long_shard: Path, sectors: BadSectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples whose rows fail between the look at the index and their turn are no sound ones."""
    page = index_page(long_shard, 1)
    monkeypatch.setattr("statetap_store.verify.SHARE_BYTES", 1)
    report = verify_shard(long_shard, on_progress=lambda *_: sectors.pages.add(page))
    assert {fault.kind for fault in report.faults} == {"shard-unreadable"}
    assert len(report.faults) == ROWS_OF_A_PAGE


def test_a_key_is_found_beside_it(long_shard: Path, sectors: BadSectors) -> None:
    """Looking for a key passes over the page."""
    sectors.pages = {index_page(long_shard, 1)}
    with ShardFile.open(long_shard) as file:
        found = find_row(file.fd, file.header.layout, f"{64:032x}")
        assert found is not None
        assert found.sequence == 64
        assert find_row(file.fd, file.header.layout, f"{40:032x}") is None
