"""The command that shows what is in shards."""

import dataclasses
import errno
import io
import json
import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console
from statetap_contract import CaptureSpec
from statetap_producer.proving.inspect_view import inspection_view
from statetap_producer.run.run_folder import RunFolder
from statetap_store import Provenance, ShardWriter, inspect_shards, repair_shard, seal

from .conftest import Invoke, prompts_of, store

SPEC = CaptureSpec("tiny", "r1", (1, 3), "post", 8, "bfloat16")
PROVENANCE = Provenance("run-1", "w0", "gpu-1", "0.5.23", "0.1.0", (2, 4))


def write(path: Path, *lengths: int, first: int = 0, spec: CaptureSpec = SPEC) -> None:
    """A shard whose samples, keys ``first`` and on, have these numbers of tokens."""
    with ShardWriter.create(path, spec, PROVENANCE, 1 << 20) as writer:
        for number, length in enumerate(lengths, first):
            states = np.full(length * spec.row_width * 2, 0x3F, np.uint8)
            mask = (np.arange(length) >= length // 2).astype(np.uint8)
            writer.append(f"{number:032x}", np.arange(length, dtype=np.int32), mask, states)
            writer.commit()


def rendered(width: int, *paths: Path) -> list[str]:
    text = io.StringIO()
    Console(width=width, file=text).print(inspection_view(inspect_shards(paths)))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_a_run_at_a_glance(statetap: Invoke, run: RunFolder) -> None:
    """Numbers, spec, provenance, shards and first samples of a run that goes on are shown."""
    first, second = prompts_of(run)
    store(run, first)
    store(run, first, second, worker="w1")
    seal(run.shard_files()[0])
    result = statetap("inspect", run.path)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = " ".join(result.stdout.split())
    num_tokens = first.prompt.num_tokens + second.prompt.num_tokens
    for words in (
        "samples 2",
        f"tokens {num_tokens}",
        "shards 1 sealed, 1 open",
        "the last one after the final norm",
        "worker w0, w1",
        "raw layer ids 1 3 4",
        f"w0-00001.h5 sealed 1 {first.prompt.num_tokens}",
        first.key,
    ):
        assert words in shown, words


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(tmp_path: Path, width: int) -> None:
    """Nothing is cut off or wrapped at usual widths, with large numbers too."""
    paths = [tmp_path / f"worker-{number:02d}-00001.h5" for number in range(3)]
    for number, path in enumerate(paths):
        write(path, *range(1, 1800, 400), first=100 * number)
    lines = rendered(width, *paths)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    assert sum(path.name in line for path in paths for line in lines) == 4


def test_lengths(tmp_path: Path) -> None:
    """Quantiles are lengths of real samples, and the bars add up to all of them."""
    path = tmp_path / "a.h5"
    lengths = [*range(1, 96), 200, 200, 300, 400, 801]
    write(path, *lengths)
    lines = rendered(80, path)
    assert "tokens a sample: 1 to 801, median 50, 95% have up to 95" in lines
    bars = dict(re.findall(r"^ *(\d+ to \d+) +█* ?(\d+)$", "\n".join(lines), re.MULTILINE))
    assert bars["1 to 101"] == "95"
    assert bars["102 to 202"] == "2"
    assert bars["708 to 801"] == "1"
    assert bars["405 to 505"] == "0"
    assert len(bars) == 8
    assert sum(map(int, bars.values())) == len(lengths)
    assert inspect_shards([path]).lengths.tolist() == lengths


def test_samples_of_one_length(tmp_path: Path) -> None:
    """A single bar is enough."""
    path = tmp_path / "a.h5"
    write(path, 7, 7)
    assert [line.split()[0] for line in rendered(80, path) if "█" in line] == ["7"]


@pytest.mark.parametrize(
    ("dtype", "element", "value"),
    [
        ("bfloat16", 0x3FC1, 1.5078125),
        ("bfloat16", 0x0001, 2.0**-133),
        ("float16", 0x3C01, 1.0009765625),
        ("float32", 0x3F800001, 1.00000011920928955078125),
    ],
)
def test_first_rows_are_exact(tmp_path: Path, dtype: str, element: int, value: float) -> None:
    """Elements are the very numbers that are stored, and the norm is that of the whole slot."""
    spec = dataclasses.replace(SPEC, dtype=dtype)
    integer = "<u4" if dtype == "float32" else "<u2"
    states = np.zeros((5, spec.row_width), integer)
    states[:, :8] = element
    states[:, 8] = states[:, 16] = element
    path = tmp_path / "a.h5"
    with ShardWriter.create(path, spec, PROVENANCE, 1 << 16) as writer:
        ids, mask = np.arange(5, dtype=np.int32), np.array([0, 1, 1, 1, 1], np.uint8)
        writer.append("a" * 32, ids, mask, states.view(np.uint8))
    inspection = inspect_shards([path])
    (sample,) = inspection.first_samples
    assert (sample.num_tokens, sample.num_loss_tokens) == (5, 4)
    assert [(row.row, row.slot) for row in inspection.first_rows] == [
        (number, slot) for number in range(3) for slot in ("h1", "h3", "last")
    ]
    assert inspection.first_rows[0].values == (value,) * 4
    assert inspection.first_rows[1].values == (value, 0.0, 0.0, 0.0)
    assert inspection.first_rows[0].norm == pytest.approx(value * 8**0.5)
    assert inspection.first_rows[1].norm == pytest.approx(value)


def test_rows_without_samples_and_duplicates(tmp_path: Path) -> None:
    """Void and damaged rows and repeated keys are counted for each shard."""
    first, second = tmp_path / "a.h5", tmp_path / "b.h5"
    write(first, 3, 4, 5)
    write(second, 6, 7, 8, first=1)
    data = bytearray(second.read_bytes())
    place = data.index(f"{2:032x}".encode()) + 60
    data[place : place + 8] = b"\xff" * 8
    second.write_bytes(data)
    inspection = inspect_shards([second, first])
    assert [shard.path for shard in inspection.shards] == [first, second]
    facts = [(s.num_samples, s.num_void, s.num_damaged, s.num_repeated) for s in inspection.shards]
    assert facts == [(3, 0, 0, 0), (2, 0, 1, 1)]
    assert inspection.lengths.tolist() == [3, 4, 5, 8]
    repair_shard(second)
    (shard,) = inspect_shards([second]).shards
    assert (shard.num_samples, shard.num_void, shard.num_damaged) == (2, 1, 0)


def test_a_shard_that_is_being_written(tmp_path: Path) -> None:
    """What is committed so far is shown while the writer goes on."""
    path = tmp_path / "a.h5"
    write(path, 3)
    with ShardWriter.open(path) as writer:
        ids, mask = np.arange(2, dtype=np.int32), np.ones(2, np.uint8)
        writer.append("b" * 32, ids, mask, np.ones((2, 24), np.uint16))
        inspection = inspect_shards([path])
    assert inspection.lengths.tolist() == [3, 2]
    assert not inspection.shards[0].is_sealed


def test_odd_shards(statetap: Invoke, tmp_path: Path) -> None:
    """No sample, states that are no numbers, another spec, no shard: all can be shown."""
    empty, other, text = (tmp_path / name for name in ("a.h5", "b.h5", "c.h5"))
    write(empty)
    spec = dataclasses.replace(SPEC, layers=(1, 2))
    with ShardWriter.create(other, spec, PROVENANCE, 1 << 16) as writer:
        ids, mask = np.arange(2, dtype=np.int32), np.ones(2, np.uint8)
        writer.append("b" * 32, ids, mask, np.full((2, 24), 0x7FC0, np.uint16))
    text.write_text("[red]no shard[/]")
    alone = statetap("inspect", empty)
    assert alone.exit_code == 0
    assert "samples       0" in alone.stdout
    assert json.loads(statetap("inspect", empty, "--json").stdout)["lengths"]["max"] is None
    result = statetap("inspect", empty, other, text)
    assert result.exit_code == 1
    for words in ("2 different ones", "nan", "shard-not-hdf5"):
        assert words in result.stdout
    document = json.loads(statetap("inspect", other, "--json").stdout)
    assert document["num_samples"] == 1
    assert document["first_rows"][0]["values"] == ["nan"] * 4
    assert document["shards"][0]["spec"]["layers"] == [1, 2]


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_can_be_read(statetap: Invoke, tmp_path: Path, *, as_json: bool) -> None:
    """A file that is no shard, alone: a sentence, and the code for what is wrong."""
    path = tmp_path / "a.h5"
    path.write_text("no shard")
    result = statetap("inspect", path, *(["--json"] if as_json else []))
    assert (result.exit_code, result.exception) == (1, None) or isinstance(
        result.exception, SystemExit
    )
    assert "shard-not-hdf5" in result.stdout
    if as_json:
        assert json.loads(result.stdout)["shards"] == []


@pytest.mark.parametrize(("dataset", "num_rows"), [("states", 0), ("loss_mask", 9)])
def test_a_bad_spot_of_the_disk(
    statetap: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: str, num_rows: int
) -> None:
    """What can be read of the first sample is shown; what cannot is said."""
    path = tmp_path / "a.h5"
    write(path, 4, 5)
    with h5py.File(path) as hdf5:
        place = hdf5[dataset].id.get_offset()
    real = os.preadv

    def fail(fd: int, buffers: list[memoryview], offset: int) -> int:
        if offset == place:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", fail)
    inspection = inspect_shards([path])
    assert [shard.num_samples for shard in inspection.shards] == [2]
    assert [sample.num_tokens for sample in inspection.first_samples] == [4, 5]
    assert len(inspection.first_rows) == num_rows
    result = statetap("inspect", path)
    assert "samples       2" in result.stdout
    if dataset == "states":
        assert [(f.kind, f.key) for f in inspection.unreadable] == [
            ("payload-unreadable", "0" * 32)
        ]
        assert result.exit_code == 1
        assert "payload-unreadable" in result.stdout
        assert "Input/output error" in " ".join(result.stdout.split())
    else:
        assert [sample.num_loss_tokens for sample in inspection.first_samples] == [None, 3]
        assert (inspection.unreadable, result.exit_code) == ((), 0)


def test_a_run_without_shards(statetap: Invoke, run: RunFolder) -> None:
    """There is nothing to show before a worker has stored something."""
    result = statetap("inspect", run.path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "start a worker" in result.stderr
