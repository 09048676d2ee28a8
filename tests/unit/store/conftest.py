"""Numbered samples and the tiny capture spec they belong to."""

import os
import runpy
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from statetap_contract import CaptureSpec
from statetap_store import Provenance, ShardWriter

Arrays = tuple[str, npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[np.uint16]]

#: Test folders are no packages, so the script shares its samples this way.
_SCRIPT: dict[str, Any] = runpy.run_path(str(Path(__file__).with_name("endless_writer.py")))


@pytest.fixture
def spec() -> CaptureSpec:
    """Layers 1 and 3 of width 8, bfloat16: rows of 24 elements, 48 bytes."""
    return cast(CaptureSpec, _SCRIPT["SPEC"])


@pytest.fixture
def provenance() -> Provenance:
    """Run run-1, worker w0."""
    return cast(Provenance, _SCRIPT["PROVENANCE"])


@pytest.fixture
def numbered_sample() -> Callable[..., Arrays]:
    """``(number, num_tokens=0)`` to the four arguments of ``append``."""
    return cast(Callable[..., Arrays], _SCRIPT["numbered_sample"])


@pytest.fixture
def shard(
    tmp_path: Path,
    spec: CaptureSpec,
    provenance: Provenance,
    numbered_sample: Callable[..., Arrays],
) -> Path:
    """A closed, unsealed shard with the samples 0 to 9, each committed alone."""
    path = tmp_path / "w0-00001.h5"
    with ShardWriter.create(path, spec, provenance, 64 * 1024) as writer:
        for number in range(10):
            writer.append(*numbered_sample(number))
            writer.commit()
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB and 32 names in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=32", "statetap-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a test that failed may have left files open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


#: Number of calls to a context that gives the names of those that happened.
CrashAt = Callable[[int], AbstractContextManager[list[str]]]


@pytest.fixture
def crash_at(monkeypatch: pytest.MonkeyPatch) -> CrashAt:
    """Gives a context in which only so many calls that change a file happen.

    The next one raises KeyboardInterrupt, as if the process ended there.
    """

    @contextmanager
    def crashing(call_number: int) -> Iterator[list[str]]:
        made: list[str] = []
        with monkeypatch.context() as patch:
            for name in ("pwrite", "fsync", "fdatasync", "ftruncate"):
                real = getattr(os, name)

                def call(*arguments: Any, name: str = name, real: Any = real) -> Any:
                    if len(made) == call_number:
                        raise KeyboardInterrupt
                    made.append(name)
                    return real(*arguments)

                patch.setattr(os, name, call)
            yield made

    return crashing


def num_open_in(folder: Path) -> int:
    """Descriptors of this process that lead into a folder."""
    return sum(fd.resolve().is_relative_to(folder) for fd in Path("/proc/self/fd").iterdir())
