"""Trainings that differ in one thing: what was done to the samples they learn from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from statetap_producer.exporting.vocabulary import VocabularyMapping, count_tokens
from statetap_store import LengthBatchSampler, RunReader, SampleTable
from statetap_store.torch_collate import collate
from torch.utils.data import DataLoader

from train_drafter.damage import Damage, Samples, Variant
from train_drafter.drafter import Drafter
from train_drafter.held_out import HeldOut, Score
from train_drafter.split import split
from train_drafter.target import Target
from train_drafter.train import Recipe, train

#: What the worst training on correct samples must be better by, in agreement, than the best one of
#: any variant.
MARGIN: Final = 0.03


@dataclass(frozen=True, slots=True)
class VariantScores:
    """A variant's trainings, one a seed."""

    variant: Variant
    scores: tuple[Score, ...]

    @property
    def agreements(self) -> tuple[float, ...]:
        return tuple(score.agreement for score in self.scores)


class Trials:
    """What all trainings have in common: target, vocabulary, samples held out.

    Args:
        table: all samples.
        model: folder of the model that they were captured from.
        recipe: how to train.
        val_fraction: share of samples to hold out.

    Raises:
        StatetapError: what ``split``, ``Target.read`` and ``count_tokens`` raise.
    """

    def __init__(
        self, table: SampleTable, model: Path, recipe: Recipe, val_fraction: float
    ) -> None:
        self.target = Target.read(model, table.spec)
        self.trained_on, self.held_out = split(table, val_fraction)
        self.recipe = recipe
        self.vocabulary = self._choose_vocabulary()
        self._judges: dict[Damage | None, HeldOut] = {}

    def score(self, variant: Variant, seed: int, on_epoch: Callable[[int, float], None]) -> Score:
        """Trains a drafter on the variant and measures it on the samples held out."""
        torch.manual_seed(seed)
        drafter = Drafter(self.target, len(self.trained_on.spec.layers), self.vocabulary)
        samples = Samples(self.trained_on, self.target.norm, variant.damage)
        train(drafter, samples, self.recipe, seed, on_epoch)
        return self._judge(variant.held_out_damage).score(drafter)

    def _judge(self, damage: Damage | None) -> HeldOut:
        if damage not in self._judges:
            samples = Samples(self.held_out, self.target.norm, damage)
            longest = int(self.held_out.num_tokens.max())
            batches = LengthBatchSampler(
                self.held_out, max(self.recipe.batch_tokens, longest), shuffle=False
            )
            loader = DataLoader(samples, batch_sampler=batches, collate_fn=collate)
            self._judges[damage] = HeldOut(loader, self.target)
        return self._judges[damage]

    def _choose_vocabulary(self) -> torch.Tensor:
        """int64, ascending: the most frequent tokens that the loss is taken over in training."""
        table = self.trained_on
        with RunReader(table) as reader:
            vocab_size = len(self.target.embedding)
            counts = count_tokens(reader, len(table), vocab_size, lambda *_: None)
        size = min(self.recipe.vocabulary_size, int((counts > 0).sum()))
        mapping = VocabularyMapping.choose(counts, size)
        return torch.from_numpy(mapping.t2d).nonzero().flatten()


def is_proven(first: VariantScores, others: Sequence[VariantScores]) -> bool:
    """Whether the first is better than all others by the margin, whatever the seeds."""
    return all(min(first.agreements) >= max(other.agreements) + MARGIN for other in others)
