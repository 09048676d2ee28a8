"""The whole pipeline, killed again and again: 2 minutes, or ``make chaos`` for long."""

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .arena import Arena
from .blows import Blows
from .findings import account, wrong_rows
from .leftovers import MARK, Census, new_mark
from .schedule import KILLS, make_schedule

#: The server's lock on its folder of dumps stays there.
_LOCK: Final = ".lock"

#: SGLang leaves 16 KiB of its own behind with every server, also with one that was told to end.
_OF_SGLANG: Final = "sglang_loads_"

#: Seconds in which everything must be stored or dead once nothing is killed any more.
_SETTLE_S: Final = 1800.0


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    mark = new_mark()
    monkeypatch.setenv(MARK, mark)
    return mark


@pytest.fixture
def chaos_dumps() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="statetap-chaos-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.timeout(3 * 3600)
def test_every_key_ends_once_whatever_is_killed(
    tiny_model: Path,
    chaos_dumps: Path,
    tmp_path: Path,
    mark: str,
    pytestconfig: pytest.Config,
) -> None:
    """In a shard with the right rows, or in the ledger with a reason; nothing is left over."""
    num_samples: int = pytestconfig.getoption("--chaos-samples")
    num_kills: int = pytestconfig.getoption("--chaos-kills")
    seed: int = pytestconfig.getoption("--chaos-seed") or random.SystemRandom().randrange(1, 10**6)
    print(f"\nseed {seed}; what happens is in {tmp_path}/chaos.log", flush=True)  # noqa: T201
    begun_s = time.monotonic()
    census = Census(mark)
    arena = Arena(tmp_path, tiny_model, chaos_dumps)
    try:
        arena.plan(num_samples, seed)
        arena.open()
        blows = Blows(arena, census)
        blows.carry_out(make_schedule(num_kills, num_samples, seed), tmp_path / "chaos.log")
        chaos_s = time.monotonic() - begun_s
        arena.stop_reconciling()
        settled = arena.statetap("reconcile", "--every=2", timeout_s=_SETTLE_S)
        census.look()
    finally:
        arena.close()
    took_s = time.monotonic() - begun_s
    found = account(arena.run)
    wrong = list(wrong_rows(arena.run, tiny_model))
    faults = [
        *blows.faults,
        *(fault for keeper in arena.keepers for fault in keeper.faults),
        *(f"still running: {line}" for line in census.remaining(timeout_s=30)),
        *left_in_memory(chaos_dumps, census.shared_memory),
        *unexpected("reconcile", settled, 1 if found.dead else 0),
        *unexpected("verify", arena.judge("verify"), 0),
        *unexpected("crosscheck", crosscheck(arena, seed), 0),
        *found.faults,
        *wrong,
    ]
    num_again = arena.to_server.num_counted - len(found.stored)
    ends = {keeper.name: dict(keeper.ends) for keeper in arena.keepers}
    lines = [
        f"seed {seed}: {num_samples} samples, {sum(blows.done[kind] for kind in KILLS)} kills",
        f"{chaos_s:.0f} s of chaos, {took_s:.0f} s until all was stored and stopped",
        *(f"  {number:5} {kind}" for kind, number in sorted(blows.done.items())),
        f"  {blows.num_sigterms:5} SIGTERMs in these storms",
        f"  {blows.num_duplicates:5} prompts queued twice",
        f"ended, by exit code: {ends}",
        f"stored {len(found.stored)} in {len(arena.run.shard_files())} shards",
        f"dead {len(found.dead)} {dict(found.dead_by_kind)}",
        f"asked of the server: {arena.to_server.num_counted}, {num_again} again",
        f"stored twice: {found.num_doubles}",
        f"status added up {blows.num_looks} times",
        f"rows unlike HF transformers: in {len(wrong)} of {found.stored.total()} samples",
        *faults,
        f"verdict: {'bad' if faults else 'good'}, {len(faults)} faults",
    ]
    print("\n".join(lines))  # noqa: T201  the result of make chaos
    assert faults == []


def crosscheck(arena: Arena, seed: int) -> "subprocess.CompletedProcess[str]":
    return arena.judge("crosscheck", f"--model={arena.model}", "--samples=200", f"--seed={seed}")


def unexpected(name: str, ended: "subprocess.CompletedProcess[str]", code: int) -> list[str]:
    """A sentence when a command did not end with this exit code."""
    if ended.returncode == code:
        return []
    return [f"{name} ended with {ended.returncode}: {ended.stdout[-500:]} {ended.stderr[-500:]}"]


def left_in_memory(dumps: Path, shared_memory: set[str]) -> list[str]:
    """Dumps, and files on shared memory that our processes had open."""
    left = {path for path in dumps.iterdir() if path.name != _LOCK}
    for path in map(Path, shared_memory - {str(dumps / _LOCK)}):
        if path.name.startswith(_OF_SGLANG):
            path.unlink(missing_ok=True)
        elif path.exists():
            left.add(path)
    return [f"left in shared memory: {path}" for path in sorted(left)]
