"""The calls by which a process changed files, and their replay on a disk in memory."""

import os
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from .disk import ROOT, Disk
from .real_files import differences

_SHIM: Final = Path(__file__).with_name("trace_shim.c")
_HEADER: Final = struct.Struct("<cQQQ")

_KINDS: Final = {
    b"W": "write",
    b"T": "truncate",
    b"F": "reserve",
    b"C": "create",
    b"M": "mkdir",
    b"L": "link",
    b"U": "unlink",
    b"R": "rename",
    b"S": "sync",
}


@dataclass(frozen=True, slots=True)
class Call:
    """One successful call."""

    #: One of ``_KINDS``.
    kind: str
    #: What it was made on or what it made; 0 where ``paths`` say it.
    inode: int
    #: Where a write starts; the new length of a truncated file, the least of a reserved one.
    offset: int = 0
    #: What was written.
    data: bytes = b""
    #: Names below the root: what was made or removed; or the old one and the new one.
    paths: tuple[str, ...] = ()

    def torn(self, num_bytes: int) -> "Call":
        """A write of which only the first bytes happened."""
        return replace(self, data=self.data[:num_bytes])


@dataclass(frozen=True, slots=True)
class Tracer:
    """Traces what processes do below ``root``, a folder, and appends it to ``file``."""

    #: An absolute path without links in it.
    root: Path
    file: Path
    _library: Path

    @classmethod
    def make(cls, folder: Path, root: Path) -> Self:
        """Compiles the shim into ``folder``, where the trace will be too.

        Raises:
            CalledProcessError: the compiler refuses it.
        """
        library = folder / "trace_shim.so"
        flags = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", str(library), str(_SHIM), "-ldl"], check=True)
        return cls(root, folder / "trace", library)

    def environment(self) -> dict[str, str]:
        """The environment in which a process is traced."""
        return os.environ | {
            "LD_PRELOAD": str(self._library),
            "TRACE_ROOT": str(self.root),
            "TRACE_FILE": str(self.file),
            # The traced process forks, which is no place for other threads.
            "OPENBLAS_NUM_THREADS": "1",
        }

    def take(self) -> tuple[Call, ...]:
        """The calls since the last time. No traced process is at work meanwhile."""
        if not self.file.exists():
            return ()
        calls = tuple(_parse(self.file.read_bytes()))
        os.truncate(self.file, 0)
        return calls


def _parse(records: bytes) -> Iterator[Call]:
    position = 0
    while position < len(records):
        letter, inode, offset, num_bytes = _HEADER.unpack_from(records, position)
        position += _HEADER.size + num_bytes
        data = records[position - num_bytes : position]
        kind = _KINDS[letter]
        if kind == "write":
            yield Call(kind, inode, offset, data)
        else:
            paths = tuple(data.decode().split("\0")) if data else ()
            yield Call(kind, inode, offset, paths=paths)


#: A test's source of tracers, each with an empty root of its own.
MakeTracer = Callable[[], Tracer]


class Replay:
    """Follows calls on a disk.

    Args:
        disk: what is below the root when the calls begin. It is changed.
        inodes: the disk's number of every inode there, the root's included.
    """

    def __init__(self, disk: Disk, inodes: dict[int, int]) -> None:
        self.disk = disk
        self._numbers = inodes

    @classmethod
    def from_empty(cls, root: Path) -> Self:
        """The replay of a trace that began with an empty root."""
        return cls(Disk(), {root.stat().st_ino: ROOT})

    def copy(self) -> "Replay":
        return Replay(self.disk.copy(), dict(self._numbers))

    def check(self, calls: Iterable[Call], root: Path) -> None:
        """Applies the calls; then the disk must be what is really below the root.

        Raises:
            RuntimeError: it is not: a file was changed by other calls than these.
        """
        for call in calls:
            self.apply(call)
        different = differences(self.disk.image(), root)
        if different:
            raise RuntimeError(f"the trace is not whole: {', '.join(different)}")

    def apply(self, call: Call) -> None:
        """Raises KeyError: the trace is not whole, for it names what is not there."""
        match call.kind:
            case "create":
                self._numbers[call.inode] = self.disk.make_file(*call.paths)
            case "mkdir":
                self._numbers[call.inode] = self.disk.make_folder(*call.paths)
            case "link":
                self.disk.link(*call.paths)
            case "unlink":
                self.disk.unlink(*call.paths)
            case "rename":
                self.disk.rename(*call.paths)
            case "write":
                self.disk.write(self._numbers[call.inode], call.offset, call.data)
            case "truncate":
                self.disk.set_length(self._numbers[call.inode], call.offset)
            case "reserve":
                self.disk.reserve(self._numbers[call.inode], call.offset)
            case "sync":
                self.disk.sync(self._numbers[call.inode])
