"""Verification finds what is wrong, names the sample, and finds nothing where nothing is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Fault, Provenance, ShardWriter, seal, verify_shard
from statetap_store.index_row import IndexRow

Sampler = Callable[..., tuple[str, Any, Any, Any]]

ROW = 128


def kinds(path: Path, *, quick: bool = False) -> list[tuple[str, str | None]]:
    return [(fault.kind, fault.key) for fault in verify_shard(path, quick=quick).faults]


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


def offsets(path: Path) -> dict[str, int]:
    with h5py.File(path) as hdf5:
        return {name: hdf5[name].id.get_offset() for name in hdf5}


@pytest.mark.parametrize("is_sealed", [False, True])
def test_intact_shard(shard: Path, *, is_sealed: bool) -> None:
    """A good shard has no faults and its numbers are right."""
    if is_sealed:
        seal(shard)
    report = verify_shard(shard)
    num_tokens = sum(1 + number % 13 for number in range(10))
    assert report.faults == ()
    assert report.is_intact
    assert (report.path, report.num_samples, report.num_tokens) == (shard, 10, num_tokens)
    assert report.num_bytes == num_tokens * (48 + 4 + 1)


def test_quick_reads_no_payload(shard: Path) -> None:
    """The quick check finds damaged rows and lets payloads be."""
    start = offsets(shard)
    flip(shard, start["states"] + 100, 0)
    assert [kind for kind, _ in kinds(shard)] == ["payload-corrupt"]
    assert kinds(shard, quick=True) == []
    flip(shard, start["index"] + 3 * ROW + 20, 0)
    assert kinds(shard, quick=True) == [("row-corrupt", f"{3:032x}")]


def test_several_wrong_bits_in_a_row(shard: Path) -> None:
    """A row beyond guessing is reported with the key it still shows, or with none."""
    start = offsets(shard)["index"]
    with shard.open("r+b") as file:
        file.seek(start + 3 * ROW + 60)
        file.write(b"\xff" * 20)
        file.seek(start + 5 * ROW)
        file.write(bytes(ROW))
    assert kinds(shard) == [("row-corrupt", f"{3:032x}"), ("row-corrupt", None)]
    assert verify_shard(shard).num_samples == 8


def test_missing_rows_of_a_sealed_shard(shard: Path) -> None:
    """A sealed shard whose last rows are gone is not taken for a shorter one."""
    seal(shard)
    with shard.open("r+b") as file:
        file.seek(offsets(shard)["index"] + 8 * ROW)
        file.write(bytes(2 * ROW))
    assert kinds(shard) == [("row-corrupt", None)] * 2


def craft(path: Path, sequence: int, **changes: int | str) -> None:
    """Puts a row with a right checksum and wrong content in place."""
    position = offsets(path)["index"] + sequence * ROW
    row = IndexRow.decode(path.read_bytes()[position : position + ROW], sequence)
    assert row is not None
    fields = {name: getattr(row, name) for name in IndexRow.__slots__} | changes
    with path.open("r+b") as file:
        file.seek(position)
        file.write(IndexRow(**fields).encode())


def test_rows_that_overlap(shard: Path) -> None:
    """Two rows that claim one token are found although both checksums are right."""
    craft(shard, 4, token_offset=9)
    assert ("rows-overlap", f"{4:032x}") in kinds(shard, quick=True)


def test_tokens_of_no_row(shard: Path) -> None:
    """Tokens between two rows that belong to neither are found."""
    craft(shard, 4, token_offset=11, num_tokens=4)
    assert kinds(shard, quick=True) == [("rows-gap", f"{4:032x}")]


def test_tokens_outside_the_shard(shard: Path) -> None:
    """A row that points beyond the datasets is found and its payload not looked for."""
    craft(shard, 9, num_tokens=1_000_000)
    assert kinds(shard) == [("row-outside", f"{9:032x}")]


def test_key_in_two_rows(shard: Path) -> None:
    """A key that a shard holds twice is found."""
    craft(shard, 4, key=f"{2:032x}")
    assert kinds(shard, quick=True) == [("key-repeated", f"{2:032x}")]


def test_row_in_the_wrong_place(shard: Path) -> None:
    """A good row that was copied over another is damage to the other."""
    start = offsets(shard)["index"]
    row = shard.read_bytes()[start + 2 * ROW : start + 3 * ROW]
    with shard.open("r+b") as file:
        file.seek(start + 6 * ROW)
        file.write(row)
    assert [kind for kind, _ in kinds(shard, quick=True)] == ["row-corrupt"]


@pytest.mark.parametrize(
    ("dtype", "infinity", "nan", "minus_zero"),
    [
        ("bfloat16", 0xFF80, 0x7F81, 0x8000),
        ("float16", 0xFC00, 0x7C01, 0x8000),
        ("float32", 0xFF800000, 0x7F800001, 0x80000000),
    ],
)
def test_states_that_no_model_computes(
    tmp_path: Path,
    provenance: Provenance,
    dtype: str,
    infinity: int,
    nan: int,
    minus_zero: int,
) -> None:
    """NaN, infinity and rows of zeros are found in their slot although the checksum is right."""
    spec = CaptureSpec("tiny", "r1", (1, 3), "post", 8, dtype)
    bits = "<u4" if dtype == "float32" else "<u2"
    good = np.full((5, 24), 0x3C00, bits)
    bad = good.copy()
    bad[1, 3] = infinity
    bad[4, 0] = nan
    bad[2:, 16:] = 0
    bad[3, 20] = minus_zero
    path = tmp_path / "s.h5"
    ids, mask = np.arange(5, dtype=np.int32), np.ones(5, np.uint8)
    with ShardWriter.create(path, spec, provenance, 4096) as writer:
        writer.append("a" * 32, ids, mask, good.view(np.uint8))
        writer.append("b" * 32, ids, mask, bad.view(np.uint8))
    sample = f"sample {'b' * 32} in {path}"
    assert sorted(verify_shard(path).faults, key=lambda fault: fault.kind) == [
        Fault(
            "states-not-finite",
            "b" * 32,
            f"{sample}: slot h1 of row 1 holds NaN or infinity, as in 1 other rows",
        ),
        Fault(
            "states-zero-row",
            "b" * 32,
            f"{sample}: slot last of row 2 is all zero, as in 2 other rows",
        ),
    ]
    assert kinds(path, quick=True) == []


def test_large_sample_is_checked_in_pieces(
    tmp_path: Path, provenance: Provenance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample larger than a piece is read piece by piece, and its last rows are checked too."""
    monkeypatch.setattr("statetap_store.payload_faults.PIECE_BYTES", 1000)
    spec = CaptureSpec("tiny", "r1", (1,), "post", 8, "bfloat16")
    states = np.full((500, 16), 0x3F80, np.uint16)
    states[497, 8:] = 0
    path = tmp_path / "s.h5"
    with ShardWriter.create(path, spec, provenance, 1 << 20) as writer:
        ids, mask = np.arange(500, dtype=np.int32), np.ones(500, np.uint8)
        writer.append("a" * 32, ids, mask, states)
    (fault,) = verify_shard(path).faults
    assert fault.message.endswith("slot last of row 497 is all zero")
    flip(path, offsets(path)["states"] + 499 * 32, 3)
    assert kinds(path) == [("payload-corrupt", "a" * 32)]


def test_progress_ends_with_everything(shard: Path) -> None:
    """Progress grows from sample to sample to the shard's bytes."""
    seen: list[tuple[int, int]] = []
    report = verify_shard(shard, on_progress=lambda done, total: seen.append((done, total)))
    assert [total for _, total in seen] == [report.num_bytes] * 10
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1] == (report.num_bytes, report.num_bytes)


def test_only_copy_lost(shard: Path) -> None:
    """A shard whose header is good and whose only copy is not is readable, and not proven."""
    flip(shard, (1 << 20) + 9, 0)
    assert kinds(shard) == [("header-unproven", None)]
    assert verify_shard(shard).num_samples == 10


def test_void_rows_are_no_samples(shard: Path, numbered_sample: Sampler) -> None:
    """What recovery gave up is neither counted nor a fault."""
    with h5py.File(shard) as hdf5:
        token = int(hdf5["index"][9]["token_offset"])
    flip(shard, offsets(shard)["states"] + 48 * token, 0)
    with ShardWriter.open(shard) as writer:
        writer.append(*numbered_sample(11))
    with h5py.File(shard) as hdf5:
        assert list(hdf5["index"][8:12]["state"]) == [1, 2, 1, 0]
    report = verify_shard(shard)
    assert (report.faults, report.num_samples) == ((), 10)
