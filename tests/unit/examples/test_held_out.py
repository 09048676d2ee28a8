"""Scores of chains, counted by hand."""

from pathlib import Path

import pytest
import torch
from statetap_contract import CaptureSpec
from statetap_store.torch_collate import collate
from statetap_store.torch_dataset import TensorSample
from train_drafter.drafter import Drafter
from train_drafter.held_out import CHAIN, HeldOut, score_of
from train_drafter.target import Target

from .conftest import WIDTH


def test_chains_by_hand() -> None:
    """Right, right, wrong, right wins two drafts and the target's own token; a gap ends a chain."""
    hits = [
        [1, 1, 0, 1],  # 1, 2, 2, 2 drafts accepted of 1 to 4
        [0, 1, 1, 1],  # none
        [1, 1, 1, 1],  # 1, 2, 3, 4
        [1, 0, 0, 0],  # 1, 1, 1, 1
        [1, 1, 1, 0],  # has no room for four: counts for agreement alone
        [1, 1, 1, 1],  # not in the loss at all
    ]
    is_counted = [[1, 1, 1, 1]] * 4 + [[1, 1, 1, 0], [0, 0, 0, 0]]
    score = score_of(torch.tensor(hits).bool(), torch.tensor(is_counted).bool())
    assert score.agreement == pytest.approx(4 / 5)
    assert (score.num_rows, score.num_chains) == (5, 4)
    assert score.acceptance == pytest.approx((1 + 3 / 4, 1 + 5 / 4, 1 + 6 / 4, 1 + 7 / 4))
    assert len(score.acceptance) == CHAIN


class SevenSayer(Drafter):
    """Drafts token 7 behind everything."""

    def next_tokens(self, states: torch.Tensor) -> torch.Tensor:
        return torch.full((len(states),), 7)


def test_a_drafter_that_always_says_the_same(made_target: Path, made_spec: CaptureSpec) -> None:
    """By hand: it is right where the target says 7, and a chain ends where it does not.

    Behind row t the target is asked at rows t + 1 to t + 4; the loss is taken over the answer, from
    token 2 on. So chains begin at rows 0 to 2, and single drafts count at rows 0 to 5.
    """
    says = torch.tensor([7, 7, 7, 3, 7, 7, 7, 7])
    sample = TensorSample(
        key="0" * 32,
        input_ids=torch.arange(8),
        loss_mask=torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]),
        aux_states=torch.zeros(8, WIDTH),
        last_states=torch.eye(WIDTH)[says],
    )
    target = Target.read(made_target, made_spec)
    drafter = SevenSayer(target, 1, torch.arange(WIDTH))
    score = HeldOut([collate([sample, sample])], target).score(drafter)
    assert score.agreement == pytest.approx(5 / 6)
    assert (score.num_rows, score.num_chains) == (12, 6)
    # Rows 0, 1, 2: asked at 1 2 3 4, at 2 3 4 5, at 3 4 5 6; accepted 2, 1 and 0 drafts of 4.
    assert score.acceptance == pytest.approx((1 + 2 / 3, 2, 2, 2))
