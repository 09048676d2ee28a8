"""A target whose next answer follows from one row and one token alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from statetap_contract import CaptureSpec
from statetap_store.torch_dataset import TensorSample
from train_drafter.comparison import Trials
from train_drafter.damage import Samples, Variant
from train_drafter.train import Recipe

from .conftest import WIDTH, Arrays, Store, seeded


def made_sample(seed: int) -> Arrays:
    """Row t hides a random code; what the target says at row t + 1 is that code and a parity.

    The parity is that of token t + 1. Codes and tokens are all drawn anew, so no other row and no
    other token tells anything.
    """
    num_tokens = 60
    codes = torch.randint(WIDTH // 2, (num_tokens,), generator=seeded(2 * seed))
    token_ids = torch.randint(WIDTH, (num_tokens,), generator=seeded(2 * seed + 1))
    answers = 2 * codes.roll(1) + token_ids % 2
    aux, last = (8.0 * torch.eye(WIDTH)[numbers] for numbers in (codes, answers))
    return token_ids.tolist(), [1] * num_tokens, aux, last


def earlier(samples: Samples, place: int) -> TensorSample:
    """Row t has the aux states of row t + 1."""
    sample = samples.intact(place)
    sample["aux_states"] = sample["aux_states"].roll(-1, dims=0)
    return sample


def later(samples: Samples, place: int) -> TensorSample:
    """Row t has the aux states of row t - 1."""
    sample = samples.intact(place)
    sample["aux_states"] = sample["aux_states"].roll(1, dims=0)
    return sample


def last_earlier(samples: Samples, place: int) -> TensorSample:
    """Row t has the last hidden state of row t + 1."""
    sample = samples.intact(place)
    sample["last_states"] = sample["last_states"].roll(-1, dims=0)
    return sample


def last_later(samples: Samples, place: int) -> TensorSample:
    """Row t has the last hidden state of row t - 1."""
    sample = samples.intact(place)
    sample["last_states"] = sample["last_states"].roll(1, dims=0)
    return sample


@pytest.fixture
def trials(store: Store, made_spec: CaptureSpec, made_target: Path) -> Trials:
    table = store(made_spec, [made_sample(seed) for seed in range(30)])
    recipe = Recipe(num_epochs=40, num_steps=1, batch_tokens=240)
    return Trials(table, made_target, recipe, 0.2)


def agreement(trials: Trials, damage: Callable[[Samples, int], TensorSample] | None) -> float:
    return trials.score(Variant("made", damage), 0, lambda *_: None).agreement


def test_the_right_row_is_learned(trials: Trials) -> None:
    """Nearly every held-out answer; a drafter that looks elsewhere has one chance in 32."""
    assert agreement(trials, None) > 0.9


@pytest.mark.parametrize("damage", [earlier, later, last_earlier, last_later])
def test_no_other_row_is(trials: Trials, damage: Callable[[Samples, int], TensorSample]) -> None:
    """One row off in either direction, aux states or last states: nothing is left but chance.

    What lies in an earlier row can be found there, so such a drafter does learn something; it is of
    no use where rows are right.
    """
    assert agreement(trials, damage) < 0.15
