"""Rows by position, over every way in which a scheduler may cut a prompt up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statetap_patch.placement import Placement, RowGapError, place


def test_a_whole_prompt_in_one_batch() -> None:
    """The request's rows begin where the batch says, not at 0."""
    got = place(prefix=0, length=5, batch_start=7, next_row=0, num_rows=5)
    assert got == Placement(first_row=0, batch_row=7, num_rows=5)


def test_a_second_chunk() -> None:
    """A chunk continues at its prefix."""
    got = place(prefix=4, length=3, batch_start=2, next_row=4, num_rows=9)
    assert got == Placement(first_row=4, batch_row=2, num_rows=3)


def test_rows_that_come_again_are_skipped() -> None:
    """After a retraction the prompt starts over; what was taken stays."""
    got = place(prefix=0, length=6, batch_start=10, next_row=4, num_rows=9)
    assert got == Placement(first_row=4, batch_row=14, num_rows=2)


def test_generated_tokens_are_no_rows_of_the_prompt() -> None:
    """A retracted request prefills its output too."""
    got = place(prefix=0, length=8, batch_start=0, next_row=0, num_rows=5)
    assert got == Placement(first_row=0, batch_row=0, num_rows=5)
    assert place(prefix=8, length=1, batch_start=3, next_row=5, num_rows=5).num_rows == 0


def test_a_gap_is_an_error() -> None:
    """A prefix served from a cache was never computed in this request."""
    with pytest.raises(RowGapError, match="rows 0 to 2 of 5"):
        place(prefix=3, length=2, batch_start=0, next_row=0, num_rows=5)


@given(st.data())
def test_any_schedule_gives_each_row_once_and_in_place(data: st.DataObject) -> None:
    """Whatever is chunked, repeated and packed beside others, row i ends at place i."""
    num_rows = data.draw(st.integers(1, 40))
    collected: list[int] = []
    computed = 0
    while len(collected) < num_rows:
        # Any batch that starts no later than what was computed so far is legal.
        prefix = data.draw(st.integers(0, computed))
        length = data.draw(st.integers(1, 50))
        batch_start = data.draw(st.integers(0, 30))
        # The batch's tensor: other requests' rows are -1, ours carry their position.
        batch = [-1] * batch_start + list(range(prefix, prefix + length)) + [-1] * 3
        got = place(
            prefix=prefix,
            length=length,
            batch_start=batch_start,
            next_row=len(collected),
            num_rows=num_rows,
        )
        assert got.first_row == len(collected)
        collected += batch[got.batch_row : got.batch_row + got.num_rows]
        computed = max(computed, prefix + length)
    assert collected == list(range(num_rows))
