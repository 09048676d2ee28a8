"""Which rows of a batch belong to which rows of a prompt: by position, never by prompt length.

The scheduler splits prompts into chunks, starts them over after a retraction, appends rows of
requests that are already generating, and serves prefixes from a cache. The batch says where each
request's rows begin (``prefix``) and how many there are (``length``); that alone is trusted.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Rows to take from a batch for one prompt."""

    #: First row of the prompt that is taken.
    first_row: int
    #: Where that row lies in the batch's tensors.
    batch_row: int
    #: Rows taken; 0 when the batch holds nothing new for the prompt.
    num_rows: int


class RowGapError(Exception):
    """Rows of the prompt were never computed, for instance because a cache served them."""


def place(*, prefix: int, length: int, batch_start: int, next_row: int, num_rows: int) -> Placement:
    """Finds the new rows of a prompt in one batch.

    Args:
        prefix: position in the sequence of the request's first row in this batch.
        length: rows of the request in this batch.
        batch_start: where the request's rows begin in the batch.
        next_row: rows of the prompt that were taken before.
        num_rows: rows of the whole prompt; what lies beyond are generated tokens.

    Raises:
        RowGapError: the batch begins beyond ``next_row``.
    """
    if prefix > next_row and next_row < num_rows:
        raise RowGapError(f"rows {next_row} to {prefix - 1} of {num_rows} were never computed")
    # Rows that come a second time (retraction, pause) were taken already.
    end = min(prefix + length, num_rows)
    taken = max(0, end - next_row)
    return Placement(next_row, batch_start + next_row - prefix, taken)
