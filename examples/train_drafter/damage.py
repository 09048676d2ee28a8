"""Faults that extractions have, done to intact samples: what a drafter trained on them is worth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from statetap_producer.exporting.model_norm import ModelNorm
from statetap_store import SampleTable
from statetap_store.torch_dataset import ShardDataset, TensorSample
from torch.utils.data import Dataset

#: Gives the sample that is to be in a place instead.
Damage = Callable[["Samples", int], TensorSample]


class Samples(Dataset[TensorSample]):
    """The samples of a table, each as a damage leaves it.

    Args:
        table: the samples.
        norm: the target's final norm where they were captured before it, else None.
        damage: None to leave them as they are.
    """

    def __init__(
        self, table: SampleTable, norm: ModelNorm | None = None, damage: Damage | None = None
    ) -> None:
        self.table = table
        self._stored = ShardDataset(table)
        self._norm = norm
        self._damage = damage
        by_length = table.num_tokens.argsort(kind="stable").tolist()
        self._neighbours = dict(_pairs(by_length))

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, place: int) -> TensorSample:
        return self.intact(place) if self._damage is None else self._damage(self, place)

    def intact(self, place: int) -> TensorSample:
        """The sample as it was captured, its last hidden states after the final norm."""
        sample = self._stored[place]
        if self._norm is not None:
            last = sample["last_states"]
            sample["last_states"] = self._norm.apply(last.float()).to(last.dtype)
        return sample

    def neighbour(self, place: int) -> TensorSample:
        """Another sample, of the most similar length."""
        return self.intact(self._neighbours[place])


def _pairs(places: list[int]) -> list[tuple[int, int]]:
    """Each place with the next or the one before; with an odd number the last shares."""
    last = len(places) - 1
    return [
        (place, places[number ^ 1 if number ^ 1 <= last else number - 1])
        for number, place in enumerate(places)
    ]


def without_aux(samples: Samples, place: int) -> TensorSample:
    """Zeros for the aux states: what can be drafted from the tokens alone."""
    sample = samples.intact(place)
    return sample | {"aux_states": torch.zeros_like(sample["aux_states"])}


def rows_shifted(samples: Samples, place: int) -> TensorSample:
    """Row t has the states of row t - 1; the first token, which has none, is gone."""
    sample = samples.intact(place)
    return TensorSample(
        key=sample["key"],
        input_ids=sample["input_ids"][1:],
        loss_mask=sample["loss_mask"][1:],
        aux_states=sample["aux_states"][:-1],
        last_states=sample["last_states"][:-1],
    )


def layers_swapped(samples: Samples, place: int) -> TensorSample:
    """The aux layers are in the opposite order."""
    sample = samples.intact(place)
    slots = torch.split(sample["aux_states"], samples.table.spec.hidden_size, dim=1)
    return sample | {"aux_states": torch.cat(slots[::-1], dim=1)}


def states_exchanged(samples: Samples, place: int) -> TensorSample:
    """The states are another sample's, of similar length; what has no counterpart is gone."""
    sample, other = samples.intact(place), samples.neighbour(place)
    num_tokens = min(len(sample["input_ids"]), len(other["input_ids"]))
    return TensorSample(
        key=sample["key"],
        input_ids=sample["input_ids"][:num_tokens],
        loss_mask=sample["loss_mask"][:num_tokens],
        aux_states=other["aux_states"][:num_tokens],
        last_states=other["last_states"][:num_tokens],
    )


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which the samples reach the training."""

    name: str
    #: What is done to the samples that are trained on.
    damage: Damage | None
    #: What is done to those held out: nothing, as a server's states are right, unless the drafter
    #: is one that takes no aux states.
    held_out_damage: Damage | None = None


#: The first is the one that must win.
VARIANTS: Final = (
    Variant("correct", None),
    Variant("no aux states", without_aux, without_aux),
    Variant("rows shifted by one", rows_shifted),
    Variant("layers swapped", layers_swapped),
    Variant("samples exchanged", states_exchanged),
)
