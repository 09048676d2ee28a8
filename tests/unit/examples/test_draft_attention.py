"""Attention over the steps of training-time test, against loops that go row by row."""

import math

import pytest
import torch
from train_drafter.draft_attention import HEAD_WIDTH, DraftAttention, Past, attend, rotated

from .conftest import seeded


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4])
def test_attend_against_a_slow_loop(num_steps: int) -> None:
    """Each row sees step 0 up to itself, and itself alone in all later steps."""
    shape = (2, 3, 7, 4)
    query = torch.randn(shape, generator=seeded(0))
    past: Past = [
        (
            torch.randn(shape, generator=seeded(2 * step + 1)),
            torch.randn(shape, generator=seeded(2 * step + 2)),
        )
        for step in range(num_steps)
    ]
    found = attend(query, past)
    for sample in range(2):
        for head in range(3):
            for row in range(7):
                seen = [(0, place) for place in range(row + 1)]
                seen += [(step, row) for step in range(1, num_steps)]
                weights = [
                    math.exp(float(query[sample, head, row] @ past[s][0][sample, head, t]) / 2)
                    for s, t in seen
                ]
                expected = sum(
                    weight / sum(weights) * past[s][1][sample, head, t]
                    for weight, (s, t) in zip(weights, seen, strict=True)
                )
                torch.testing.assert_close(found[sample, head, row], expected)


def test_rotation_depends_on_distance_alone() -> None:
    """Query at m and key at n give what complex rotation by m - n gives."""
    query, key = torch.randn(2, 1, 1, 1, HEAD_WIDTH, generator=seeded(3)).double()
    for m, n in ((0, 0), (5, 5), (9, 2), (130, 128)):
        ours = (rotated(query, m) * rotated(key, n)).sum()
        half = HEAD_WIDTH // 2
        first = torch.complex(query[..., :half], query[..., half:])
        second = torch.complex(key[..., :half], key[..., half:])
        turns = 10_000.0 ** (-torch.arange(half).double() / half) * (m - n)
        expected = (
            first * second.conj() * torch.polar(torch.ones(half).double(), turns)
        ).real.sum()
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_a_step_is_what_a_server_computes() -> None:
    """A chain behind row t, computed alone, token by token, on the rows up to t and itself.

    That is plain causal attention over t + 1 rows of the target and the chain's own, at the
    positions where they are in the text.
    """
    torch.manual_seed(0)
    attention = DraftAttention(2 * HEAD_WIDTH)
    steps = [torch.randn(1, 6, 4 * HEAD_WIDTH, generator=seeded(step)) for step in range(3)]
    past: Past = []
    unrolled = [attention(inputs, past) for inputs in steps]
    for row in range(6):
        chain = torch.cat(
            [steps[0][:, : row + 1], steps[1][:, row, None], steps[2][:, row, None]], 1
        )
        alone = attention(chain, [])
        for number in range(3):
            torch.testing.assert_close(unrolled[number][0, row], alone[0, row + number])
