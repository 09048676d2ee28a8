"""Format 1 is frozen: files that an earlier writer made are read, and appended to, for ever.

``data/format-1-open.h5.xz`` and ``format-1-sealed.h5.xz`` were written by version 0.1.0 and are
never written again. A change that these tests fail on is another format version.

Each holds the samples f0 to f4, where sample ``0xf0 + k`` has ``k + 1`` tokens. Between f3 and f4
a crash left a sample half-written, which recovery made a void row. The sealed one is the same
shard, sealed.
"""

import hashlib
import lzma
from pathlib import Path
from typing import Final

import h5py
import numpy as np
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardReader, ShardWriter, seal, verify_shard

DATA: Final = Path(__file__).with_name("data")

SHA256: Final = {
    "open": "059a864ebf05c95f50d6eb3ebe6a6488fc0fa7a48f182f34ecb1226368ab3c68",
    "sealed": "c570875799015a27e96847d3cbc97fe32c936bcb40f3718d1c6f7b1d21932c67",
}

#: Token ids and first bfloat16 bit pattern of each sample. The masks are 0, 1, 0, 1, ..., and the
#: patterns of a sample count up from the first, row by row.
SAMPLES: Final = {
    "000000000000000000000000000000f0": ([0], 0x3F80),
    "000000000000000000000000000000f1": ([100, 101], 0x3F90),
    "000000000000000000000000000000f2": ([200, 201, 202], 0x3FA0),
    "000000000000000000000000000000f3": ([300, 301, 302, 303], 0x3FB0),
    "000000000000000000000000000000f4": ([400, 401, 402, 403, 404], 0x3FC0),
}


@pytest.fixture(params=["open", "sealed"])
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A frozen shard, unpacked."""
    content = lzma.decompress((DATA / f"format-1-{request.param}.h5.xz").read_bytes())
    assert hashlib.sha256(content).hexdigest() == SHA256[request.param], "never written again"
    path = tmp_path / f"format-1-{request.param}.h5"
    path.write_bytes(content)
    return path


def assert_samples_are_read(path: Path) -> None:
    with ShardReader(path) as reader:
        found = {entry.key: reader.read(entry) for entry in reader.samples}
    assert list(found)[:5] == list(SAMPLES)
    for key, (token_ids, first) in SAMPLES.items():
        num_tokens = len(token_ids)
        assert found[key].token_ids.tolist() == token_ids
        assert found[key].loss_mask.tolist() == [token % 2 for token in range(num_tokens)]
        patterns = np.arange(first, first + 12 * num_tokens).reshape(num_tokens, 12)
        assert found[key].states.tolist() == patterns.tolist()


def test_samples_are_read_and_proven(frozen: Path) -> None:
    """Every sample is there, bit by bit, and nothing is found wrong."""
    assert_samples_are_read(frozen)
    report = verify_shard(frozen)
    assert (report.num_samples, report.num_tokens, report.faults) == (5, 15, ())


def test_header_is_read(frozen: Path) -> None:
    """Capture spec and provenance are what they were."""
    with ShardReader(frozen) as reader:
        assert reader.spec == CaptureSpec(
            "frozen-model", "frozen-revision", (1, 3), "post", 4, "bfloat16"
        )
        assert reader.provenance == Provenance(
            run="frozen-run",
            worker="w0-00",
            host="gpu-7",
            sglang_version="0.5.23",
            patch_version="0.1.0",
            raw_layer_ids=(2, 4),
            tokenizer_digest="1a" * 16,
            template_digest="2b" * 16,
        )
        assert reader.created == "2026-11-30T06:56:50+00:00"
        assert reader.is_sealed == ("sealed" in frozen.name)


def test_plain_hdf5_reads_it(frozen: Path) -> None:
    """The void row is there, and the samples lie where their rows say."""
    with h5py.File(frozen) as hdf5:
        rows = hdf5["index"][:6]
        assert rows["state"].tolist() == [1, 1, 1, 1, 2, 1]
        assert rows["token_offset"].tolist() == [0, 1, 3, 6, 10, 10]
        assert hdf5["input_ids"][10:15].tolist() == [400, 401, 402, 403, 404]


def test_it_is_appended_to_and_sealed(tmp_path: Path) -> None:
    """A run that was begun with an earlier version goes on with this one."""
    path = tmp_path / "w0-00001.h5"
    path.write_bytes(lzma.decompress((DATA / "format-1-open.h5.xz").read_bytes()))
    key, ids = "f" * 32, np.array([7, 8], np.int32)
    with ShardWriter.open(path) as writer:
        assert not writer.append(
            next(iter(SAMPLES)), ids, np.ones(2, np.uint8), np.ones((2, 12), "u2")
        )
        assert writer.append(key, ids, np.ones(2, np.uint8), np.ones((2, 12), "u2"))
    assert_samples_are_read(path)
    seal(path)
    assert_samples_are_read(path)
    report = verify_shard(path)
    assert (report.num_samples, report.num_tokens, report.faults) == (6, 17, ())
