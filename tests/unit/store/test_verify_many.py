"""Many shards are verified in several processes, with the verdicts that one process gives."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import psutil
import pytest
from statetap_contract import CaptureSpec, MissingError
from statetap_store import Provenance, ShardWriter, seal, verify_shard, verify_shards

Sampler = Callable[..., tuple[str, Any, Any, Any]]

WRITER = Path(__file__).with_name("endless_writer.py")

#: Verifies the shards in its arguments in two processes, a sample at a time, and tells their pids.
SCRIPT = """
import multiprocessing, sys
from pathlib import Path
from statetap_store import verify_many
verify_many.SHARE_BYTES, verify_many._SMALL_BYTES = 1, 0

def tell(done, total):
    if not done:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]]
    try:
        verify_many.verify_shards(paths, quick=False, num_processes=2, on_progress=tell)
    except KeyboardInterrupt:
        sys.exit("interrupted")
"""


@pytest.fixture
def shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small the work is, it is cut into samples and shared."""
    monkeypatch.setattr("statetap_store.verify_many._SMALL_BYTES", 0)
    monkeypatch.setattr("statetap_store.verify_many.SHARE_BYTES", 1)


@pytest.fixture
def shards(
    tmp_path: Path, spec: CaptureSpec, provenance: Provenance, numbered_sample: Sampler
) -> list[Path]:
    """Six shards of 30 samples each: intact, sealed, damaged here and there, and no shard."""
    paths = [tmp_path / f"w{number}-00001.h5" for number in range(6)]
    for number, path in enumerate(paths):
        with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
            for sample in range(30):
                writer.append(*numbered_sample(100 * number + sample))
                writer.commit()
    seal(paths[1])
    for path, dataset, damaged in (
        (paths[2], "states", (3, 29, 7)),
        (paths[3], "index", (5, 2)),
        (paths[3], "loss_mask", (20, 10)),
    ):
        damage(path, dataset, damaged)
    paths[5].write_text("no shard")
    return paths


def damage(path: Path, dataset: str, sequences: tuple[int, ...]) -> None:
    """Changes a bit of each of these samples."""
    with h5py.File(path) as hdf5:
        start, element = hdf5[dataset].id.get_offset(), hdf5[dataset][0].nbytes
        offsets = hdf5["index"]["token_offset"].astype(int)
    with path.open("r+b") as file:
        for sequence in sequences:
            position = sequence if dataset == "index" else offsets[sequence]
            file.seek(start + element * position)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))


@pytest.mark.usefixtures("shared_out")
@pytest.mark.parametrize("quick", [False, True])
def test_the_verdicts_of_one_process(shards: list[Path], *, quick: bool) -> None:
    """Reports, faults and their order are those of each shard verified alone."""
    expected = [verify_shard(path, quick=quick) for path in shards]
    num_faults = [0, 0, 0, 2, 0, 1] if quick else [0, 0, 3, 4, 0, 1]
    assert [len(report.faults) for report in expected] == num_faults
    for num_processes in (1, 2, 3):
        seen: list[tuple[int, int]] = []
        reports = verify_shards(
            shards,
            quick=quick,
            num_processes=num_processes,
            on_progress=lambda *numbers, seen=seen: seen.append(numbers),
        )
        assert list(reports) == expected
        total = sum(report.num_bytes for report in expected)
        if not quick:
            assert seen == sorted(set(seen))
            assert (seen[0], seen[-1]) == ((0, total), (total, total))
            assert len(seen) == 1 + sum(report.num_samples for report in expected)


def test_small_work_stays_in_this_process(shards: list[Path]) -> None:
    """No process is started for what is done before it would be there."""
    children: list[Any] = []
    verify_shards(
        shards,
        quick=False,
        num_processes=4,
        on_progress=lambda *_: children.extend(multiprocessing.active_children()),
    )
    assert children == []


@pytest.mark.usefixtures("shared_out")
def test_a_missing_shard(shards: list[Path]) -> None:
    """A path without a file ends it with the sentence that one process has."""
    shards[4].unlink()
    for num_processes in (1, 2):
        with pytest.raises(MissingError, match="there is no shard") as missing:
            verify_shards(
                shards, quick=False, num_processes=num_processes, on_progress=lambda *_: None
            )
        assert missing.value.kind == "shard-missing"
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("shared_out")
def test_a_shard_that_goes_away(shards: list[Path]) -> None:
    """It has that fault when payloads are checked, and all others are checked to the end."""
    kept = [verify_shard(path) for path in shards[:4]]

    def remove(done: int, _: int) -> None:
        if not done:
            shards[4].unlink()

    *reports, gone = verify_shards(shards[:5], quick=False, num_processes=1, on_progress=remove)
    assert reports == kept
    assert {fault.kind for fault in gone.faults} == {"shard-missing"}
    assert str(shards[4]) in gone.faults[0].message


@pytest.mark.usefixtures("shared_out")
def test_a_killed_process(shards: list[Path]) -> None:
    """When one of the processes is killed the others end too, and one sentence says so."""

    def kill_one(done: int, _: int) -> None:
        if not done:
            os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    with pytest.raises(MissingError, match="was killed") as killed:
        verify_shards(shards, quick=False, num_processes=2, on_progress=kill_one)
    assert killed.value.kind == "process-killed"
    assert multiprocessing.active_children() == []


@contextmanager
def verifying(paths: list[Path]) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A program that is verifying in two processes of a group of its own."""
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as program:
        try:
            assert program.stdout is not None
            workers = [psutil.Process(int(pid)) for pid in program.stdout.readline().split()]
            assert len(workers) == 2
            yield program, workers
        finally:
            program.kill()


def wait_for_the_end(processes: list[psutil.Process]) -> None:
    """Until none runs any more, a minute at most."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not any(map(is_running, processes)):
            return
        time.sleep(0.02)
    raise AssertionError([process for process in processes if is_running(process)])


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_interrupted(shards: list[Path]) -> None:
    """Ctrl-C reaches all of a terminal's processes: all end, and none says a word of its own."""
    with verifying(shards[:4] * 200) as (program, workers):
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=60)
        assert (program.returncode, errors) == (1, "interrupted\n")
        wait_for_the_end(workers)


def test_no_process_outlives_its_master(shards: list[Path]) -> None:
    """When the program is killed outright, those that worked for it end."""
    with verifying(shards[:4] * 200) as (program, workers):
        program.kill()
        wait_for_the_end(workers)


def test_a_run_that_is_being_written(tmp_path: Path) -> None:
    """Whatever a writer is doing, appending, rolling over, sealing, nothing looks wrong."""
    folder, acknowledged = tmp_path / "shards", tmp_path / "acknowledged"
    arguments = [str(folder), "0", "3", str(acknowledged)]
    num_looks = 0
    with subprocess.Popen([sys.executable, str(WRITER), *arguments]) as writer:
        try:
            deadline = time.monotonic() + 120
            num_shards = 0
            while num_shards < 40 and time.monotonic() < deadline:
                newest = sorted(folder.glob("[!.]*.h5"))[-2:]
                reports = verify_shards(
                    newest, quick=False, num_processes=1, on_progress=lambda *_: None
                )
                assert [report.faults for report in reports] == [()] * len(newest)
                num_shards = len(list(folder.glob("[!.]*.h5")))
                num_looks += 1
            assert writer.poll() is None
        finally:
            writer.kill()
    assert num_shards >= 40
    assert num_looks > 20


@pytest.mark.parametrize("step", [2, 4, 6, 8])
def test_a_seal_under_way_is_no_fault(
    shard: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Between any two steps of sealing a shard looks intact, and unfinished only when given up."""
    made: list[str] = []
    writer = ShardWriter.open(shard)
    reports = []
    for name in ("pwrite", "fsync", "ftruncate"):
        real = getattr(os, name)

        def call(*arguments: Any, name: str = name, real: Any = real) -> Any:
            made.append(name)
            if len(made) == step:
                reports.append(verify_shard(shard))
            return real(*arguments)

        monkeypatch.setattr(os, name, call)
    writer.seal()
    assert [report.faults for report in reports] == [()]
    assert made == ["pwrite", "fsync"] * 3 + ["ftruncate", "fsync"]
