"""Progress where there is no terminal."""

import pytest
from rich.filesize import decimal
from statetap_producer.terminal.progress import LogLines, count_progress


def test_a_line_every_ten_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    """However often it is told, the log gets a line at most every ten seconds, on stderr."""
    now = 0.0
    log = LogLines("planning", decimal, clock=lambda: now)
    for second in range(26):
        now = float(second)
        log(second * 1_000_000, 45_000_000)
    log(99_000_000, None)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == "planning: 10.0 MB of 45.0 MB\nplanning: 20.0 MB of 45.0 MB\n"


def test_short_steps_leave_no_line(capfd: pytest.CaptureFixture[str]) -> None:
    """What is over in a moment says nothing."""
    with count_progress("comparing", 3) as on_progress:
        on_progress(3)
    assert capfd.readouterr() == ("", "")
