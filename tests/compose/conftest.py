"""An engine and a stack of containers, for tests that make test-compose runs."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from statetap_contract import MissingError

from .engine import DockerEngine, add_stand_ins, unmount_namespaces
from .stack import Stack, compose_command


@pytest.fixture(scope="session")
def engine(pytestconfig: pytest.Config) -> Iterator[str]:
    """Address of a Docker engine: of the test's own, or that of DOCKER_HOST where it is set."""
    if not pytestconfig.getoption("--compose"):
        pytest.skip("containers take a quarter of an hour: make test-compose")
    if given := os.environ.get("DOCKER_HOST"):
        yield given
        return
    missing = [name for name in ("docker", "dockerd", "debootstrap") if not shutil.which(name)]
    if missing or not compose_command():
        pytest.skip(f"Docker is not installed here: no {', '.join(missing) or 'Compose'}")
    if os.geteuid() != 0:
        pytest.skip("an engine of the test's own takes root; or set DOCKER_HOST")
    folder = Path(tempfile.mkdtemp(prefix="statetap-engine-"))
    log = Path(tempfile.gettempdir()) / f"{folder.name}.log"
    try:
        try:
            started = DockerEngine(folder, log)
        except MissingError as error:
            pytest.skip(f"a Docker engine does not run on this machine: {error}")
        try:
            yield started.address
        finally:
            started.stop(timeout_s=120)
    finally:
        unmount_namespaces(folder)
        # Below a mount that is still there lie files of somebody else.
        if str(folder) not in Path("/proc/self/mounts").read_text():
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def stack(engine: str, repository: Path) -> Iterator[Stack]:
    """The repository's copy, ready to be built from; whatever still runs is taken down."""
    scratch = Path(tempfile.mkdtemp(prefix="statetap-compose-"))
    try:
        made = Stack(repository, scratch / "statetap", engine)
        made.step("base images: stand-ins by debootstrap, where the engine has none")
        add_stand_ins(engine, scratch)
        made.step("this machine's certificates, index and torch, for the build")
        made.take_package_settings()
        yield made
        made.step("down, with all volumes")
        made.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
