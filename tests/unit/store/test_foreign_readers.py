"""A shard is a plain HDF5 file: h5py, PyTables and h5dump read it, sealed or still open."""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import tables
import torch
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardWriter
from statetap_store.torch_view import to_torch

Sampler = Callable[..., tuple[str, Any, Any, Any]]
Array = npt.NDArray[Any]

#: Attributes and datasets of a shard, as a reader gives them.
Content = tuple[dict[str, Any], dict[str, Array]]

DATASETS = ("index", "input_ids", "loss_mask", "states")

#: Magic, state, key, first token, tokens: how h5dump shows a row's first fields.
DUMPED_ROW = re.compile(r'\{\s*\d+,\s*(\d+),\s*"([^"]*)",\s*(\d+),\s*(\d+),')
DUMPED_FIELDS = [("state", "u4"), ("key", "S32"), ("token_offset", "u8"), ("num_tokens", "u4")]

STORED = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}


def values_of(number: int, num_tokens: int) -> npt.NDArray[np.float32]:
    """States of a sample, [num_tokens, 24]: eighths from 1/8 to 255/8, exact in every dtype."""
    eighths = 1 + (31 * number + np.arange(num_tokens * 24)) % 255
    return (eighths.astype(np.float32) / np.float32(8)).reshape(num_tokens, 24)


def stored_form(values: npt.NDArray[np.float32], dtype: str) -> Array:
    """Values as a shard has them; those of bfloat16 are the upper halves of their float32s."""
    if dtype == "bfloat16":
        return (values.view("<u4") >> 16).astype("<u2")
    return values.astype(STORED[dtype])


@pytest.fixture(params=STORED)
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["open", "sealed"])
def is_sealed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def typed_shard(
    tmp_path: Path,
    dtype: str,
    is_sealed: bool,  # noqa: FBT001
    provenance: Provenance,
    numbered_sample: Sampler,
) -> Iterator[Path]:
    """Samples 0 to 9, with the states of ``values_of``; not sealed, its writer still has it."""
    path = tmp_path / "w0-00001.h5"
    spec = CaptureSpec("tiny", "r1", (1, 3), "post", 8, dtype)
    with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
        for number in range(10):
            key, ids, mask, _ = numbered_sample(number)
            writer.append(key, ids, mask, stored_form(values_of(number, len(ids)), dtype))
            writer.commit()
        if is_sealed:
            writer.seal()
        yield path


def by_h5py(path: Path) -> Content:
    with h5py.File(path) as hdf5:
        return dict(hdf5.attrs), {name: hdf5[name][...] for name in DATASETS}


def by_pytables(path: Path) -> Content:
    with tables.open_file(path) as file:
        attributes = {name: file.root._v_attrs[name] for name in file.root._v_attrs._v_attrnames}
        return attributes, {name: file.root[name][:] for name in DATASETS}


def by_h5dump(path: Path) -> Content:
    if shutil.which("h5dump") is None:
        pytest.skip("there is no h5dump: install hdf5-tools")

    def h5dump(*arguments: object) -> str:
        command = ["h5dump", *map(str, arguments), str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    attributes: dict[str, Any] = {}
    for name in ("format", "format_version", "dtype", "slots", "layers", "spec_digest", "sealed"):
        shown = re.search(r"DATA \{\s*\(0\): (.*?)\s*\}", h5dump("-a", f"/{name}"), re.DOTALL)
        assert shown is not None
        parts = [part.strip('"') for part in shown[1].split(", ")]
        attributes[name] = parts if len(parts) > 1 else parts[0]
    for name in ("format_version", "sealed"):
        attributes[name] = int(attributes[name])
    attributes["layers"] = [int(layer) for layer in attributes["layers"]]

    elements = {"input_ids": "<i4", "loss_mask": "u1", "states": STORED[attributes["dtype"]]}
    datasets: dict[str, Array] = {}
    for name, element in elements.items():
        shown = re.search(r"DATA \{(.*?)\}", h5dump("-d", f"/{name}", "-y", "-w", 0), re.DOTALL)
        assert shown is not None
        datasets[name] = np.array([float(value) for value in shown[1].split(",")], element)
    datasets["states"] = datasets["states"].reshape(-1, 24)
    rows = DUMPED_ROW.findall(h5dump("-d", "/index"))
    datasets["index"] = np.array(
        [(int(state), key, int(start), int(length)) for state, key, start, length in rows],
        DUMPED_FIELDS,
    )
    return attributes, datasets


@pytest.mark.parametrize("read", [by_h5py, by_pytables, by_h5dump])
def test_foreign_reader(
    typed_shard: Path,
    dtype: str,
    is_sealed: bool,  # noqa: FBT001
    numbered_sample: Sampler,
    read: Callable[[Path], Content],
) -> None:
    """Attributes, index and every sample are what was stored, to the bit."""
    attributes, datasets = read(typed_shard)
    assert attributes["format"] == "statetap-shard"
    assert attributes["format_version"] == 1
    assert attributes["dtype"] == dtype
    assert attributes["sealed"] == is_sealed
    assert list(attributes["slots"]) == ["h1", "h3", "last"]
    assert list(attributes["layers"]) == [1, 3]
    assert re.fullmatch("[0-9a-f]{32}", attributes["spec_digest"])

    rows = datasets["index"]
    samples = rows[rows["state"] == 1]
    assert [row["key"].decode() for row in samples] == [f"{number:032x}" for number in range(10)]
    assert datasets["states"].dtype == np.dtype(STORED[dtype])
    for number, row in enumerate(samples):
        _, ids, mask, _ = numbered_sample(number)
        tokens = slice(int(row["token_offset"]), int(row["token_offset"] + row["num_tokens"]))
        assert np.array_equal(datasets["input_ids"][tokens], ids)
        assert np.array_equal(datasets["loss_mask"][tokens], mask)
        expected = stored_form(values_of(number, len(ids)), dtype)
        assert datasets["states"][tokens].tobytes() == expected.tobytes()


def test_torch_takes_states_as_they_are(typed_shard: Path, dtype: str) -> None:
    """States of plain h5py become a tensor of their dtype, over the very same memory."""
    with h5py.File(typed_shard) as hdf5:
        row = hdf5["index"][7]
        start, num_tokens = int(row["token_offset"]), int(row["num_tokens"])
        states = hdf5["states"][start : start + num_tokens]
    tensor = torch.from_numpy(states).view(getattr(torch, dtype))
    assert tensor.data_ptr() == to_torch(states, dtype).data_ptr() == states.ctypes.data
    assert tensor.dtype == to_torch(states, dtype).dtype == getattr(torch, dtype)
    assert tensor.float().numpy().tolist() == values_of(7, 8).tolist()
    assert to_torch(states, dtype).equal(tensor)
