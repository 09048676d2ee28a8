"""Lengths of time in words."""

import pytest
from statetap_producer.terminal.durations import duration


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (425, "7 min 5 s"),
        (3600, "1 h"),
        (3659, "1 h"),
        (12_000, "3 h 20 min"),
        (367_200, "4 d 6 h"),
    ],
)
def test_the_two_largest_units_are_shown(seconds: float, words: str) -> None:
    """Nobody wants the seconds of a run that takes days."""
    assert duration(seconds) == words
