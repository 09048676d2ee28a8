"""The training: from a table of samples to a drafter."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from statetap_store import LengthBatchSampler
from statetap_store.torch_collate import TensorBatch, collate
from torch import nn
from torch.utils.data import DataLoader

from train_drafter.alignment import ahead
from train_drafter.damage import Samples
from train_drafter.drafter import Drafter


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train. The defaults are for some 50,000 tokens."""

    num_epochs: int = 6
    #: Tokens that the drafter can say, at most.
    vocabulary_size: int = 2048
    #: Tokens of a batch, padding included; more where a single sample has more.
    batch_tokens: int = 1024
    #: Tokens that are drafted behind each row: the first from the target's states, each further
    #: one from the drafter's own.
    num_steps: int = 2
    learning_rate: float = 2e-3
    #: Share of the training in which the learning rate rises.
    warmup: float = 0.1
    #: What a step's loss weighs of that of the step before it, as in EAGLE-3.
    step_weight: float = 0.8


def train(
    drafter: Drafter,
    samples: Samples,
    recipe: Recipe,
    seed: int,
    on_epoch: Callable[[int, float], None],
) -> None:
    """Trains a drafter in place.

    Args:
        drafter: new.
        samples: what to train on, as it is to be seen.
        recipe: how.
        seed: of the order of the samples.
        on_epoch: called with the epochs done and the mean loss of the last one.
    """
    longest = int(samples.table.num_tokens.max())
    batches = LengthBatchSampler(samples.table, max(recipe.batch_tokens, longest), seed=seed)
    loader = DataLoader(samples, batch_sampler=batches, collate_fn=collate)
    optimizer = torch.optim.AdamW(drafter.parameters(), recipe.learning_rate, betas=(0.9, 0.95))
    num_updates = recipe.num_epochs * len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: _rate(update / num_updates, recipe.warmup)
    )
    for epoch in range(recipe.num_epochs):
        batches.set_epoch(epoch)
        total = 0.0
        for batch in loader:
            loss = batch_loss(drafter, batch, recipe)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        on_epoch(epoch + 1, total / len(batches))


def batch_loss(drafter: Drafter, batch: TensorBatch, recipe: Recipe) -> torch.Tensor:
    """Cross-entropy against the target's distribution, over the tokens that the drafter can say.

    Over the rows that count, weighted over the steps.
    """
    is_asked = ahead(batch["loss_mask"], 1).bool()
    wanted = drafter.target_logits(batch["last_states"][is_asked]).softmax(dim=-1)
    places = is_asked.flatten().cumsum(0).view_as(is_asked) - 1
    loss = torch.zeros(())
    weights = 0.0
    for step, states in drafter.unroll(batch, recipe.num_steps):
        rows = step.is_counted
        answers = wanted[step.answers(places)[rows]]
        losses = nn.functional.cross_entropy(drafter.logits(states[rows]), answers, reduction="sum")
        weight = recipe.step_weight**step.number
        # A batch of very short samples may have no row that counts.
        loss = loss + weight * losses / rows.sum().clamp(min=1)
        weights += weight
    return loss / weights


def _rate(progress: float, warmup: float) -> float:
    """The share of the learning rate that applies: rises evenly, then falls as a cosine."""
    if progress < warmup:
        return progress / warmup
    return 0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup)))
