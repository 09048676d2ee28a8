"""The disk format, read by its documentation and by plain h5py."""

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardWriter, seal
from statetap_store.index_row import ROW_DTYPE, IndexRow

DOCUMENT = (Path(__file__).parents[3] / "docs" / "format.md").read_text()


def table_after(heading: str) -> list[list[str]]:
    """The rows of the first table under a heading, without its head."""
    section = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_index_row_is_documented_byte_by_byte() -> None:
    """Every field of the index row has the offset, type and name that the document gives."""
    documented = [(int(offset), kind, name) for offset, kind, name, *_ in table_after("Index row")]
    fields = ROW_DTYPE.fields
    assert fields is not None
    actual = [
        (fields[name][1], str(fields[name][0]).replace("<", ""), name)
        for name in ROW_DTYPE.names or ()
    ]
    kinds = {"('u8', (2,))": "2 x u8", "|S32": "S32", "uint32": "u4", "uint64": "u8"}
    assert documented == [(offset, kinds.get(kind, kind), name) for offset, kind, name in actual]
    assert ROW_DTYPE.itemsize == 128


def test_index_row_bytes_are_the_compound_type() -> None:
    """A row packed for the disk reads the same through the compound type that HDF5 shows."""
    row = IndexRow(1, "ab" * 16, 7, 5, 11, 12, 13, 14, 15, 9)
    field = np.frombuffer(row.encode(), ROW_DTYPE)[0]
    assert field["magic"].tobytes() == b"STR1"
    assert field["key"] == b"ab" * 16
    fields = ("state", "token_offset", "num_tokens", "states_xxh3", "ids_xxh3", "mask_xxh3")
    assert [int(field[name]) for name in fields] == [1, 7, 5, 11, 12, 13]
    assert [int(field[name]) for name in ("time_ns", "sequence", "num_durable")] == [14, 15, 9]
    assert IndexRow.decode(row.encode(), 15) == row
    assert IndexRow.decode(row.encode(), 14) is None, "a row in another's place"


def test_datasets_are_documented(shard: Path) -> None:
    """The shard has the documented datasets, in the documented order and element types."""
    documented = [(name, kind) for name, kind, *_ in table_after("Datasets")]
    with h5py.File(shard) as hdf5:
        by_offset = sorted(hdf5, key=lambda name: hdf5[name].id.get_offset())
        kinds = {name: "row" if name == "index" else hdf5[name].dtype.str[1:] for name in hdf5}
    assert [name for name, _ in documented] == by_offset
    assert kinds == dict(documented)


@pytest.mark.parametrize("is_sealed", [False, True])
def test_datasets_are_contiguous_and_aligned(shard: Path, *, is_sealed: bool) -> None:
    """Each dataset is one piece at a multiple of 1 MiB, the first MiB is header alone."""
    if is_sealed:
        seal(shard)
    with h5py.File(shard) as hdf5:
        offsets = [hdf5[name].id.get_offset() for name in hdf5]
        ends = [hdf5[name].id.get_offset() + hdf5[name].nbytes for name in hdf5]
        assert {hdf5[name].chunks for name in hdf5} == {None}
    assert min(offsets) == 1024 * 1024
    assert {offset % (1024 * 1024) for offset in offsets} == {0}
    assert shard.stat().st_size == max(ends)
    assert all(end <= start for end, start in zip(sorted(ends), sorted(offsets)[1:], strict=False))


def test_attributes_are_documented(shard: Path, spec: CaptureSpec) -> None:
    """The root attributes are the documented ones, readable as they are."""
    with h5py.File(shard) as hdf5:
        attributes = dict(hdf5.attrs)
        states_dtype = hdf5["states"].attrs["dtype"]
    assert {name for name, *_ in table_after("Attributes")} == set(attributes)
    assert attributes["format"] == "statetap-shard"
    assert attributes["format_version"] == 1
    assert attributes["spec_digest"] == spec.digest
    assert list(attributes["layers"]) == [1, 3]
    assert list(attributes["slots"]) == ["h1", "h3", "last"]
    assert list(attributes["raw_layer_ids"]) == [2, 4]
    assert attributes["run"] == "run-1"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", attributes["created"])
    assert states_dtype == attributes["dtype"] == "bfloat16"


@pytest.fixture
def documented_reading(tmp_path: Path) -> Callable[[Path, str], dict[str, Any]]:
    """``(path, key)`` to the names that the document's example sets."""
    example = tmp_path / "example.py"
    match = re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert match is not None
    example.write_text(match[1])
    return lambda path, key: runpy.run_path(str(example), {"path": path, "key": key})


@pytest.mark.parametrize("is_sealed", [False, True])
def test_documented_reading_works(
    shard: Path,
    numbered_sample: Callable[..., Any],
    documented_reading: Callable[[Path, str], dict[str, Any]],
    *,
    is_sealed: bool,
) -> None:
    """The document's example, which needs h5py and xxhash alone, reads a sample exactly."""
    if is_sealed:
        seal(shard)
    key, ids, mask, states = numbered_sample(7)
    found = documented_reading(shard, key)
    assert np.array_equal(found["token_ids"], ids)
    assert np.array_equal(found["loss_mask"], mask)
    assert np.array_equal(found["states"], states)


def test_documented_reading_takes_nothing_damaged(
    shard: Path,
    numbered_sample: Callable[..., Any],
    documented_reading: Callable[[Path, str], dict[str, Any]],
) -> None:
    """It passes over damaged and void rows, and refuses what they held and damaged payload."""
    with h5py.File(shard) as hdf5:
        rows = hdf5["index"][:10]
        index, states = (hdf5[name].id.get_offset() for name in ("index", "states"))
    void = IndexRow.void(f"{7:032x}", 1, int(rows[1]["token_offset"]), 2, 1)
    moved = int(rows[2]["token_offset"]) ^ 1
    with shard.open("r+b") as file:
        for place, data in (
            # A key that is no text, a void row with the key of a later sample, another place.
            (index + 128 * 0 + 8, b"\xff"),
            (index + 128 * 1, void.encode()),
            (index + 128 * 2 + 40, moved.to_bytes(8, "little")),
            # A whole row in another's place, and one wrong element of the states of sample 5.
            (index + 128 * 3, rows[4].tobytes()),
            (states + 48 * int(rows[5]["token_offset"]), b"\xff\xff"),
        ):
            file.seek(place)
            file.write(data)
    for number in (4, 6, 7, 8, 9):
        key, _, _, expected = numbered_sample(number)
        assert np.array_equal(documented_reading(shard, key)["states"], expected)
    for number in (0, 1, 2, 3, 5):
        with pytest.raises(ValueError, match=r"unpack|checksum"):
            documented_reading(shard, numbered_sample(number)[0])


@pytest.mark.parametrize(
    ("dtype", "stored"), [("bfloat16", "<u2"), ("float16", "<f2"), ("float32", "<f4")]
)
def test_states_keep_every_bit(
    tmp_path: Path, provenance: Provenance, dtype: str, stored: str
) -> None:
    """NaN payloads, infinities, subnormals and negative zero come back as they went in."""
    spec = CaptureSpec("tiny", "r1", (1,), "pre", 8, dtype)
    bits = np.random.default_rng(5).integers(0, 256, (4, spec.row_bytes), np.uint8)
    # NaN with a payload, infinity, the smallest subnormal, negative zero: of both widths.
    bits[0, :16] = np.frombuffer(bytes.fromhex("a57fff7f a5a5c07f 0000807f 01000080"), np.uint8)
    path = tmp_path / "s.h5"
    with ShardWriter.create(path, spec, provenance, 4096) as writer:
        ids, mask = np.arange(4, dtype=np.int32), np.ones(4, np.uint8)
        writer.append("0" * 32, ids, mask, bits)
        writer.append("1" * 32, ids, mask, bits.view(stored))
    with h5py.File(path) as hdf5:
        assert hdf5["states"].dtype == np.dtype(stored)
        assert hdf5["states"].attrs["dtype"] == dtype
        assert hdf5["states"][:4].tobytes() == bits.tobytes()
        assert hdf5["states"][4:8].tobytes() == bits.tobytes()
