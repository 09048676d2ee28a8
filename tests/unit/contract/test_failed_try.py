"""Failed tries as lines."""

import pytest
from statetap_contract import FailedTry

FAILED = FailedTry("ab" * 16, 1, "mismatch", "http://s", "2026-01-01T00:00:00+00:00")


def test_a_line_is_read_back() -> None:
    """What a worker writes is what the producer reads."""
    assert FailedTry.from_json(FAILED.to_json()) == FAILED


@pytest.mark.parametrize("change", [{"attempt": "1"}, {"attempt": True}, {"more": 1}])
def test_another_line_is_refused(change: dict[str, object]) -> None:
    """Wrong types and unknown fields; and so is one in which a field is missing."""
    with pytest.raises(ValueError, match="the failed try"):
        FailedTry.from_json(FAILED.to_json() | change)
    short = FAILED.to_json()
    del short["server"]
    with pytest.raises(ValueError, match="server"):
        FailedTry.from_json(short)
