"""How filling the queue looks."""

import pytest
from statetap_producer.queueing.broker import RedisMemory
from statetap_producer.queueing.feed import FeedProgress
from statetap_producer.queueing.feed_view import feed_progress
from statetap_producer.terminal import progress


def show() -> None:
    with feed_progress("queueing", 2000) as on_progress:
        on_progress(FeedProgress(1000, 200, 950, RedisMemory(3_500_000, 0)))


def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the queue's length and the memory that Redis has in use."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    show()
    shown = capsys.readouterr()
    assert shown.out == ""
    for words in ("queueing", "1200/2000", "950 in the queue, Redis 3.5 MB"):
        assert words in shown.err


def test_a_log_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One every so often; what is over soon leaves none."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    show()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    show()
    assert capsys.readouterr().err == (
        "queueing: 1,200 of 2,000 prompts, 950 in the queue, Redis 3.5 MB\n"
    )


def test_the_whole_may_be_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for a rerun."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    with feed_progress("queueing", None) as on_progress:
        on_progress(FeedProgress(10, 0, 9, RedisMemory(1_000_000, 0)))
    assert capsys.readouterr().err == "queueing: 10, 9 in the queue, Redis 1.0 MB\n"


def test_a_feed_that_waits_for_memory_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what Redis may use."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    with feed_progress("queueing", 2000) as on_progress:
        memory = RedisMemory(3_200_000, 4_000_000)
        on_progress(FeedProgress(1000, 0, 950, memory, is_memory_full=True))
    assert capsys.readouterr().err == (
        "queueing: 1,000 of 2,000 prompts, 950 in the queue, Redis 3.2 MB of 4.0 MB: waiting for "
        "memory\n"
    )
