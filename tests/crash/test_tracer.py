"""The tracer: every call that changes a file, in order, and a clear error when one is missing."""

import signal
import subprocess
import sys

import pytest

from .disk import Disk
from .trace import Call, MakeTracer, Replay, Tracer

EVERY_CALL = """
import os, sys
root = sys.argv[1]
os.mkdir(f"{root}/f")
fd = os.open(f"{root}/f/a", os.O_CREAT | os.O_RDWR)
os.pwrite(fd, b"abc", 5)
os.pwritev(fd, [b"de", b"f"], 8)
os.write(fd, b"xy")
os.write(fd, b"z")
os.fdatasync(fd)
os.ftruncate(fd, 10)
os.posix_fallocate(fd, 4, 16)
os.fsync(fd)
os.close(fd)
os.link(f"{root}/f/a", f"{root}/f/b")
os.unlink(f"{root}/f/a")
os.rename(f"{root}/f/b", f"{root}/c")
folder = os.open(f"{root}/f", os.O_RDONLY)
os.fsync(folder)
os.close(os.open(f"{root}/c", os.O_CREAT | os.O_WRONLY))
os.close(os.open(f"{root}/c", os.O_TRUNC | os.O_WRONLY))
with open(f"{root}/c", "a") as file:
    file.write("more")
with open("/dev/null", "w") as elsewhere:
    elsewhere.write("nothing")
"""

FAILING_CALLS = """
import contextlib, os, sys
root = sys.argv[1]
for call in (
    lambda: os.unlink(f"{root}/a"),
    lambda: os.link(f"{root}/a", f"{root}/b"),
    lambda: os.open(f"{root}/f/a", os.O_CREAT | os.O_WRONLY),
    lambda: os.pwrite(os.open(root, os.O_RDONLY), b"abc", 0),
):
    with contextlib.suppress(OSError):
        call()
        raise SystemExit("this should fail")
"""

UNTRACED_CALL = """
import mmap, os, sys
fd = os.open(f"{sys.argv[1]}/a", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 4096)
mmap.mmap(fd, 4096)[7] = 7
"""


KILLED_CALL = """
import ctypes, os, sys
shim = ctypes.CDLL(None)
ctypes.c_char.in_dll(shim, "trace_counts_from").value = b"W"
ctypes.c_int.in_dll(shim, "trace_calls_left").value = 2
fd = os.open(f"{sys.argv[1]}/a", os.O_CREAT | os.O_WRONLY)
for _ in range(5):
    os.write(fd, b"x")
    os.fsync(fd)
"""


def run(script: str, tracer: Tracer) -> tuple[Call, ...]:
    command = [sys.executable, "-c", script, str(tracer.root)]
    subprocess.run(command, env=tracer.environment(), check=True)
    return tracer.take()


def test_every_call_is_recorded(make_tracer: MakeTracer) -> None:
    """With what it was made on, where and what was written; and replayed, it gives the files."""
    tracer = make_tracer()
    start = Replay.from_empty(tracer.root)
    calls = run(EVERY_CALL, tracer)
    folder, file = (tracer.root / "f").stat().st_ino, (tracer.root / "c").stat().st_ino
    assert calls == (
        Call("mkdir", folder, paths=("f",)),
        Call("create", file, paths=("f/a",)),
        Call("write", file, 5, b"abc"),
        Call("write", file, 8, b"def"),
        Call("write", file, 0, b"xy"),
        Call("write", file, 2, b"z"),
        Call("sync", file),
        Call("truncate", file, 10),
        Call("reserve", file, 20),
        Call("sync", file),
        Call("link", 0, paths=("f/a", "f/b")),
        Call("unlink", 0, paths=("f/a",)),
        Call("rename", 0, paths=("f/b", "c")),
        Call("sync", folder),
        Call("truncate", file, 0),
        Call("write", file, 0, b"more"),
    )
    start.check(calls, tracer.root)
    assert tracer.take() == ()


def test_failed_calls_are_left_out(make_tracer: MakeTracer) -> None:
    """They changed nothing."""
    assert run(FAILING_CALLS, make_tracer()) == ()


def test_a_process_is_killed_after_some_call(make_tracer: MakeTracer) -> None:
    """The second one from the first write on; it happened, and was recorded."""
    tracer = make_tracer()
    with pytest.raises(subprocess.CalledProcessError) as killed:
        run(KILLED_CALL, tracer)
    assert killed.value.returncode == -signal.SIGKILL
    assert [call.kind for call in tracer.take()] == ["create", "write", "sync"]
    assert (tracer.root / "a").read_bytes() == b"x"


def test_a_missing_call_is_noticed(make_tracer: MakeTracer) -> None:
    """A file that was changed in a way that is not traced differs from the replay."""
    tracer = make_tracer()
    start = Replay.from_empty(tracer.root)
    calls = run(UNTRACED_CALL, tracer)
    with pytest.raises(RuntimeError, match=r"trace is not whole: .*/a has another content"):
        start.check(calls, tracer.root)


def test_a_replay_follows_inodes_that_are_used_again() -> None:
    """A new file may have the inode of one that was removed, and is another file."""
    replay = Replay(Disk(), {1: 0})
    for call in (
        Call("create", 2, paths=("a",)),
        Call("write", 2, 0, b"old"),
        Call("unlink", 2, paths=("a",)),
        Call("create", 2, paths=("b",)),
        Call("write", 2, 0, b"n"),
    ):
        replay.apply(call)
    [file] = replay.disk.image().files.values()
    assert (file.length, file.pages[0]) == (1, b"n")
