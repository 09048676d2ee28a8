"""The command that makes one shard of many."""

import signal
import subprocess
import sys
from pathlib import Path

import h5py
from statetap_producer.run.run_folder import RunFolder
from statetap_store import verify_shard

from .conftest import Invoke, prompts_of, store

#: Merges, and is told to end when it has begun.
SCRIPT = """
import os, signal
from statetap_producer.cli import main
from statetap_store import merge

def end_here(*_):
    os.kill(os.getpid(), signal.SIGTERM)

merge.write_index = end_here
main()
"""


def test_a_run_in_one_file(statetap: Invoke, run: RunFolder, tmp_path: Path) -> None:
    """All samples of all workers are in the new shard, and what was left out is told."""
    first, second = prompts_of(run)
    store(run, first)
    store(run, second, worker="w1")
    (run.shards / "w2-00001.h5").write_bytes(run.shard_files()[0].read_bytes())
    out = tmp_path / "all.h5"
    result = statetap("merge", run.path, "--out", out)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"2 samples of 3 shards in {out}, ")
    assert "1 further sample left out" in result.stdout
    with h5py.File(out) as hdf5:
        assert {row["key"].decode() for row in hdf5["index"]} == {first.key, second.key}
    assert verify_shard(out, has_digest_keys=True).faults == ()
    assert statetap("verify", out).exit_code == 0


def test_mistakes_are_sentences(statetap: Invoke, run: RunFolder, tmp_path: Path) -> None:
    """An output that exists or cannot be, and a damaged sample, each end it with one sentence."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    assert statetap("merge", run.path).exit_code == 2
    for out, exit_code, words in (
        (shard, 2, "exists already"),
        (tmp_path / "no" / "all.h5", 3, "make it first"),
    ):
        result = statetap("merge", run.path, "--out", out)
        assert (result.exit_code, result.stdout) == (exit_code, "")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
    with h5py.File(shard) as hdf5:
        place = hdf5["states"].id.get_offset()
    with shard.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff\xff\xff\xff")
    result = statetap("merge", run.path, "--out", tmp_path / "all.h5")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"statetap repair {shard}" in result.stderr
    assert not list(tmp_path.glob("*all*"))


def test_terminated(run: RunFolder, tmp_path: Path) -> None:
    """A merge that is told to end leaves nothing behind."""
    store(run, *prompts_of(run))
    out = tmp_path / "all.h5"
    command = [sys.executable, "-c", SCRIPT, "merge", str(run.path), "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 128 + signal.SIGTERM
    assert (ended.stdout, ended.stderr) == ("", "")
    assert not list(tmp_path.glob("*all*"))
