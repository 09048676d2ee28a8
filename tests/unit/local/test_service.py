"""Background processes: started, waited for, stopped."""

import sys
from pathlib import Path

import psutil
import pytest
from statetap_contract import MissingError
from statetap_local.service import Service, free_port, is_listening

#: Ignores SIGTERM, as does its child.
_STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("ready", flush=True)
time.sleep(600)
"""


def start(tmp_path: Path, code: str) -> Service:
    return Service("the thing", [sys.executable, "-c", code], tmp_path / "logs" / "thing.log")


def test_a_service_that_ends_at_once_says_why(tmp_path: Path) -> None:
    """The last line of its log is the reason, and the log is named."""
    service = start(tmp_path, "print('first'); print('no model here')")
    with pytest.raises(MissingError, match=r"the thing did not start: no model here \(log: .*log"):
        service.wait_until(lambda: False, 60)


def test_a_service_that_is_late_is_named(tmp_path: Path) -> None:
    """With the time it was given."""
    service = start(tmp_path, "import time; time.sleep(600)")
    with pytest.raises(MissingError, match="not ready after 0 s"):
        service.wait_until(lambda: False, 0)
    assert not service.is_running


def test_ctrl_c_while_waiting_stops_the_service(tmp_path: Path) -> None:
    """Nobody else knows of it yet."""
    service = start(tmp_path, "import time; time.sleep(600)")

    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        service.wait_until(interrupt, 60)
    assert not service.is_running


def test_a_service_that_will_not_stop_is_killed_with_its_children(tmp_path: Path) -> None:
    """Nothing keeps running after stop."""
    service = start(tmp_path, _STUBBORN)
    service.wait_until(lambda: "ready" in service.log.read_text(), 60)
    (child,) = psutil.Process(service.pid).children()
    service.stop(timeout_s=0.2)
    psutil.wait_procs([child], timeout=10)
    assert not service.is_running
    assert not child.is_running()


def test_a_free_port_is_free() -> None:
    """Nobody listens on it yet."""
    assert not is_listening(free_port())
