"""Which row answers for which token, by hand."""

import pytest
import torch
from statetap_store.torch_collate import TensorBatch, collate
from statetap_store.torch_dataset import TensorSample
from train_drafter.alignment import DraftStep, ahead


def sample_of(token_ids: list[int], loss_mask: list[int]) -> TensorSample:
    """Row t has aux states 10 t and a last state 100 t."""
    places = torch.arange(len(token_ids)).float()[:, None]
    return TensorSample(
        key="0" * 32,
        input_ids=torch.tensor(token_ids),
        loss_mask=torch.tensor(loss_mask),
        aux_states=10 * places,
        last_states=100 * places,
    )


@pytest.fixture
def batch() -> TensorBatch:
    """Five tokens, of which the last three are an answer, and three with one."""
    return collate([sample_of([5, 6, 7, 8, 9], [0, 0, 1, 1, 1]), sample_of([1, 2, 3], [0, 0, 1])])


def test_first_step_by_hand(batch: TensorBatch) -> None:
    """Row 0 has seen token 5, is given token 6 and asked what the target says to it: row 1.

    That is about token 7, which the loss is taken over.
    """
    step = DraftStep.of(batch, 0)
    assert step.tokens.tolist() == [[6, 7, 8, 9, 0], [2, 3, 0, 0, 0]]
    assert step.answers(batch["last_states"])[..., 0].tolist() == [
        [100, 200, 300, 400, 0],
        [100, 200, 0, 0, 0],
    ]
    assert step.is_counted.int().tolist() == [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]


def test_second_and_third_step_by_hand(batch: TensorBatch) -> None:
    """The same, a token later each."""
    step = DraftStep.of(batch, 1)
    assert step.tokens.tolist() == [[7, 8, 9, 0, 0], [3, 0, 0, 0, 0]]
    assert step.answers(batch["last_states"])[..., 0].tolist() == [
        [200, 300, 400, 0, 0],
        [200, 0, 0, 0, 0],
    ]
    assert step.is_counted.int().tolist() == [[1, 1, 0, 0, 0], [0] * 5]
    assert DraftStep.of(batch, 2).is_counted.int().tolist() == [[1, 0, 0, 0, 0], [0] * 5]


def test_ahead_of_the_end_is_nothing() -> None:
    """Any distance, and the rows themselves stay as they were."""
    rows = torch.tensor([[1, 2, 3]])
    found = [ahead(rows, distance).tolist() for distance in range(5)]
    assert found == [[[1, 2, 3]], [[2, 3, 0]], [[3, 0, 0]], [[0, 0, 0]], [[0, 0, 0]]]
    assert rows.tolist() == [[1, 2, 3]]
