"""The loss of a batch, against loops that go row by row through its definition."""

from pathlib import Path

import pytest
import torch
from statetap_contract import CaptureSpec, UsageError
from statetap_store.torch_collate import collate
from statetap_store.torch_dataset import TensorSample
from train_drafter.drafter import Drafter
from train_drafter.target import Target
from train_drafter.train import Recipe, batch_loss

from .conftest import WIDTH, seeded

#: Not every token of the target can be said.
VOCABULARY = torch.arange(3, WIDTH, 2)


def random_sample(number: int, loss_mask: list[int]) -> TensorSample:
    states = 3 * torch.randn(2, len(loss_mask), WIDTH, generator=seeded(number))
    return TensorSample(
        key=f"{number:032x}",
        input_ids=torch.randint(WIDTH, (len(loss_mask),), generator=seeded(number)),
        loss_mask=torch.tensor(loss_mask),
        aux_states=states[0],
        last_states=states[1],
    )


@pytest.fixture
def drafter(made_target: Path, made_spec: CaptureSpec) -> Drafter:
    torch.manual_seed(0)
    return Drafter(Target.read(made_target, made_spec), 1, VOCABULARY)


def test_loss_against_a_slow_loop(drafter: Drafter) -> None:
    """Over tokens in the loss: step k at row t learns what the target says at row t + 1 + k.

    The made target's head is the identity, so its logits are the last hidden state itself.
    """
    masks = ([1, 1, 0, 1, 1, 0, 1], [0, 0, 1, 1, 1])
    batch = collate([random_sample(number, mask) for number, mask in enumerate(masks)])
    expected = torch.tensor(0.0)
    for step, (_, states) in enumerate(drafter.unroll(batch, 3)):
        losses = []
        for number, mask in enumerate(masks):
            for row in range(len(mask)):
                asked = row + 2 + step
                if asked >= len(mask) or not mask[asked]:
                    continue
                wanted = batch["last_states"][number, asked - 1][VOCABULARY].softmax(0)
                normed = drafter.norm(states[number, row])
                losses.append(-(wanted * normed[VOCABULARY].log_softmax(0)).sum())
        expected = expected + 0.5**step * torch.stack(losses).mean()
    loss = batch_loss(drafter, batch, Recipe(num_steps=3, step_weight=0.5))
    torch.testing.assert_close(loss, expected / 1.75)


def test_a_batch_without_a_single_row(drafter: Drafter) -> None:
    """Samples so short that nothing is asked make no loss, and no NaN."""
    batch = collate([random_sample(1, [0, 1]), random_sample(2, [1])])
    loss = batch_loss(drafter, batch, Recipe())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    gradients = [parameter.grad for parameter in drafter.parameters()]
    assert all(gradient is None or not gradient.any() for gradient in gradients)


def test_widths_that_do_not_divide_into_heads() -> None:
    """Said before anything is trained."""
    target = Target(torch.zeros(9, 96), torch.zeros(9, 96), None)
    with pytest.raises(UsageError, match="hidden size 96 is no multiple of 64"):
        Drafter(target, 3, torch.arange(9))


def test_aux_states_of_any_size_are_the_same(drafter: Drafter) -> None:
    """Only the direction of a layer's states counts: a hundred times larger they change nothing."""
    sample = random_sample(1, [0, 1, 1, 1])
    ((_, states),) = drafter.unroll(collate([sample]), 1)
    larger = sample | {"aux_states": 100 * sample["aux_states"]}
    ((_, again),) = drafter.unroll(collate([larger]), 1)
    torch.testing.assert_close(again, states, rtol=1e-3, atol=1e-5)
