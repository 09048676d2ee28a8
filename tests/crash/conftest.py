"""One traced run of a writer, and room in memory for what crashes leave of it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .trace import MakeTracer, Tracer


@pytest.fixture(scope="session")
def make_tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeTracer]:
    """Makes tracers, each of an empty folder of its own on shared memory."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler, which the tracing of system calls needs: install one")
    roots: list[Path] = []

    def made() -> Tracer:
        root = Path(tempfile.mkdtemp(prefix="statetap-crash-", dir="/dev/shm")).resolve()
        roots.append(root)
        return Tracer.make(tmp_path_factory.mktemp("trace"), root)

    yield made
    for root in roots:
        shutil.rmtree(root)
