"""What a watch draws."""

import pytest
from statetap_producer.run_state import RunNumbers
from statetap_producer.status_view import show_watch
from statetap_producer.watch import Sighting


def seen(stored: int, dead: int) -> Sighting:
    pending = 2000 - stored - dead
    numbers = RunNumbers("demo", 2000, stored, dead, pending, 0, stored * 10, stored * 1000, {}, [])
    return Sighting(numbers, None)


def test_a_watch_draws_where_the_run_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal the bar shows samples, dead letters, rate and size; stdout stays clean."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert show_watch([seen(0, 0), seen(1500, 3)]) == seen(1500, 3)
    drawn = capsys.readouterr()
    assert drawn.out == ""
    for words in ("demo", "1,500/2,000 samples", "3 dead", "tokens/s", "1.5 MB"):
        assert words in drawn.err


def test_a_log_gets_no_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where stderr is no terminal nothing is drawn at all."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    show_watch([seen(0, 0), seen(1500, 3)])
    assert capsys.readouterr().err == ""
