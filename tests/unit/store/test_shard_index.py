"""The index is read while it grows, and looked at twice only where it needs to be."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardWriter
from statetap_store.shard_file import ShardFile

Sampler = Callable[..., tuple[str, Any, Any, Any]]

ROW = 128


def test_a_bit_in_the_unused_end(
    tmp_path: Path,
    spec: CaptureSpec,
    provenance: Provenance,
    numbered_sample: Sampler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However far behind the samples it is, that one row alone is looked at again."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 16 * 10_000 * 53) as writer:
        for number in range(3):
            writer.append(*numbered_sample(number))
    with h5py.File(path) as hdf5:
        assert hdf5["index"].shape[0] > 10_000
        start = hdf5["index"].id.get_offset()
    with path.open("r+b") as file:
        file.seek(start + ROW * 9_000)
        file.write(b"\1")
    offsets: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        offsets.append(offset)
        return real(fd, buffers, offset)

    with ShardFile.open(path) as shard:
        monkeypatch.setattr(os, "preadv", preadv)
        index = shard.load_index()
    assert (len(index.rows), index.damaged, index.end, index.junk) == (3, (), 3, (9_000,))
    assert start + ROW * 9_000 in offsets
    assert len(offsets) < 10


def test_rows_that_are_written_meanwhile(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that were empty and half-written when they were read are right when looked at again."""
    with h5py.File(shard) as hdf5:
        start = hdf5["index"].id.get_offset()
    real = os.preadv
    calls: list[int] = []

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        num_read = real(fd, buffers, offset)
        calls.append(offset)
        if len(calls) == 1:
            assert offset == start
            buffers[0][8 * ROW : 9 * ROW] = bytes(ROW)
            buffers[0][9 * ROW + 64 : 10 * ROW] = bytes(ROW - 64)
        return num_read

    with ShardFile.open(shard) as file:
        monkeypatch.setattr(os, "preadv", preadv)
        index = file.load_index()
    assert index.rows["sequence"].tolist() == list(range(10))
    assert (index.damaged, index.junk, index.unreadable) == ((), (), ())
