"""What ends is started again; what does not end when told to is a fault."""

import sys
import time
from pathlib import Path

import psutil
from statetap_local.service import Service

from .keeper import Keeper

#: Says when it is ready to be told to end, and does not end for it.
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def running(keeper: Keeper, other_than: psutil.Process | None = None) -> psutil.Process:
    """The process, once there is one, and it is not the one given."""
    deadline_s = time.monotonic() + 30
    while (process := keeper.process) is None or process == other_than:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return process


def test_a_killed_service_is_started_again(tmp_path: Path) -> None:
    """And its end is counted by exit code; closed, it stays away."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    keeper = Keeper("sleeper", lambda: Service("sleeper", command, tmp_path / "log"), pause_s=0)
    first = running(keeper)
    first.kill()
    second = running(keeper, other_than=first)
    keeper.close()
    assert not second.is_running()
    assert keeper.ends == {-9: 1, -15: 1}
    assert keeper.faults == []


def test_a_service_that_does_not_end_is_a_fault(tmp_path: Path) -> None:
    """It is ended all the same."""
    log = tmp_path / "log"

    def deaf() -> Service:
        service = Service("deaf", [sys.executable, "-c", DEAF], log)
        service.wait_until(lambda: "ready" in log.read_text(), 30)
        return service

    keeper = Keeper("deaf", deaf, pause_s=60, stop_s=0.1)
    process = running(keeper)
    keeper.expect_end(within_s=0)
    while keeper.process is not None:
        time.sleep(0.01)
    keeper.close()
    assert keeper.faults == [f"deaf (pid {process.pid}) did not end when told to"]
    assert keeper.ends == {-9: 1}
