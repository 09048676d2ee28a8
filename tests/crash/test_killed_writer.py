"""Real processes, really killed."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from statetap_store import ShardReader

from .check import Checker
from .deliver import Deliverer, acknowledged_in

TESTS = Path(__file__).parents[1]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder on shared memory, where a commit takes less time than on a busy disk."""
    with tempfile.TemporaryDirectory(prefix="statetap-crash-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.mark.timeout(600)
def test_kill_nine_loses_and_doubles_nothing(root: Path, pytestconfig: pytest.Config) -> None:
    """After kills at random moments, with redelivery, each sample is there once and is right."""
    num_kills: int = pytestconfig.getoption("--crash-kills")
    command = [sys.executable, "-m", "crash.killed_writers", str(root), str(num_kills), "1"]
    killed = subprocess.run(command, cwd=TESTS, check=True, stdout=subprocess.PIPE, text=True)
    print("\nkilled while", killed.stdout)  # noqa: T201  a result of make crash
    killed_in = json.loads(killed.stdout)
    assert sum(killed_in.values()) == num_kills
    assert killed_in.keys() == {"opening", "appending", "rolling over"}

    acknowledged = acknowledged_in((root / "acknowledged").read_bytes())
    Deliverer(root).close()
    findings = Checker().check(root / "shards", acknowledged)
    assert findings.all() == []
    # Numbers were delivered one after another, so none is missing in between.
    num_stored = 0
    for path in (root / "shards").glob("*.h5"):
        with ShardReader(path) as reader:
            num_stored += len(reader.samples)
    assert num_stored >= len(acknowledged) == max(acknowledged) + 1
