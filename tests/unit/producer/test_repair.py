"""The command that puts damaged shards right and says what a run has lost."""

import json
from pathlib import Path

import h5py
import pytest
from statetap_local.services import LocalRedis
from statetap_producer.proving.repair import repair
from statetap_producer.queueing.enqueue import enqueue
from statetap_producer.queueing.run_state import RunState
from statetap_producer.run.run_folder import RunFolder
from statetap_store import ShardWriter

from .conftest import Invoke, prompts_of, store


def flip(shard: Path, dataset: str, element: int) -> None:
    """Changes one bit of an element of a dataset."""
    with h5py.File(shard) as hdf5:
        place = hdf5[dataset].id.get_offset() + element * hdf5[dataset][0].nbytes
    with shard.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_an_intact_run(statetap: Invoke, run: RunFolder) -> None:
    """Nothing is wrong, nothing is done, and that is what it says."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    before = shard.read_bytes()
    result = statetap("repair", run.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "1 shard intact, nothing lost" in result.stdout
    assert "enqueue" not in result.stdout
    assert shard.read_bytes() == before
    document = json.loads(statetap("repair", run.path, "--json").stdout)
    assert document["is_good"] is True
    assert document["lost_keys"] == []
    assert document["shards"][0]["num_samples"] == 2


def test_what_is_lost_is_pending_again(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """The lost key is listed with the way to get it back, and counts as stored nowhere."""
    first, second = prompts_of(run)
    store(run, first, second)
    (shard,) = run.shard_files()
    flip(shard, "states", 0)
    flip(shard, "index", 1)
    result = statetap("repair", run.path)
    assert result.exit_code == 0
    for words in (first.key, "states that fail their checksum", "one wrong bit, which was put"):
        assert words in result.stdout
    assert "1 shard intact, 1 sample lost" in result.stdout
    assert f"statetap enqueue --run {run.path}" in result.stdout

    numbers = RunState(run).numbers()
    assert (numbers.planned, numbers.stored, numbers.dead, numbers.pending) == (2, 1, 0, 1)
    assert json.loads(statetap("status", "--run", run.path, "--json").stdout)["stored"] == 1
    assert statetap("verify", run.path).exit_code == 1
    assert enqueue(run, redis_server.url, window=0).num_enqueued == 1
    store(run, first)
    assert statetap("verify", run.path).exit_code == 0


@pytest.mark.parametrize("form", ["run", "folder", "shard"])
def test_the_run_that_lost_is_named(statetap: Invoke, run: RunFolder, form: str) -> None:
    """However its shards were named, the command that extracts anew is the run's own."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    flip(shard, "states", 0)
    path = {"run": run.path, "folder": run.shards, "shard": shard}[form]
    result = statetap("repair", path)
    assert "1 shard intact, 1 sample lost" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(f"anew: statetap enqueue --run {run.path}")


def test_a_shard_named_twice_is_repaired_once(run: RunFolder) -> None:
    """Else the second time would say that nothing is lost."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    flip(shard, "states", 0)
    outcome = repair([run.path, shard, run.shards], lambda *_: None)
    assert [len(report.lost) for report in outcome.reports] == [1]
    assert outcome.runs == (run.path,)


def test_a_sample_that_another_shard_has_is_not_lost(run: RunFolder) -> None:
    """What was stored twice is there still."""
    first, second = prompts_of(run)
    store(run, first, second)
    (shard,) = run.shard_files()
    copy = run.shards / "w1-00001.h5"
    copy.write_bytes(shard.read_bytes())
    flip(shard, "states", 0)
    outcome = repair([run.path], lambda *_: None)
    assert outcome.is_good
    assert [len(report.lost) for report in outcome.reports] == [1, 0]
    assert outcome.lost == ()


def test_shards_beyond_repair(statetap: Invoke, run: RunFolder) -> None:
    """One that cannot be repaired keeps nobody from the others, and the command fails."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    broken = run.shards / "a.h5"
    broken.write_text("no shard")
    flip(shard, "states", 0)
    result = statetap("repair", run.path)
    assert result.exit_code == 1
    for words in ("1 of 2 shards could not be", "not repaired", "move it out", "enqueue --run"):
        assert words in result.stdout
    assert prompts_of(run)[0].key in result.stdout
    document = json.loads(statetap("repair", run.path, "--json").stdout)
    assert [len(report["left"]) for report in document["shards"]] == [1, 0]
    with ShardWriter.open(shard):
        result = statetap("repair", shard)
    assert result.exit_code == 1
    assert "shard-locked" in result.stdout


@pytest.mark.parametrize("command", [("repair",), ("inspect",), ("merge", "--out", "all.h5")])
def test_paths_that_are_not_there(
    statetap: Invoke, run: RunFolder, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """A missing shard is one sentence, and nothing was done before it."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    flip(shard, "states", 0)
    before = shard.read_bytes()
    out = [str(tmp_path / word) if word.endswith(".h5") else word for word in command]
    result = statetap(*out, run.path, tmp_path / "no.h5")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == f"statetap: there is no shard {tmp_path / 'no.h5'}: check the path\n"
    assert shard.read_bytes() == before


def test_many_faults_are_cut(statetap: Invoke, run: RunFolder, tmp_path: Path) -> None:
    """Twenty faults of a sort are shown, and where the others are."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    folder = tmp_path / "many"
    folder.mkdir()
    shards = [folder / f"{number:02d}.h5" for number in range(23)]
    flip(shard, "states", 0)
    for path in shards:
        path.write_bytes(shard.read_bytes())
    result = statetap("repair", *shards)
    assert result.exit_code == 0
    assert result.stdout.count("payload-corrupt") == 20
    assert "and 3 more; --json lists all" in result.stdout
    assert "statetap enqueue --run DIR" in result.stdout
