"""What a drafter is worth on samples that it was not trained on."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from statetap_store.torch_collate import TensorBatch

from train_drafter.drafter import Drafter
from train_drafter.target import Target

#: Tokens of the longest chain that is simulated.
CHAIN: Final = 4


@dataclass(frozen=True, slots=True)
class Score:
    """How a drafter does."""

    #: Share of rows whose first drafted token is the one that the target thinks most likely.
    agreement: float
    #: For chains of 1 to ``CHAIN`` tokens: tokens won by one forward pass of the target.
    acceptance: tuple[float, ...]
    #: Rows that ``agreement`` is taken over, and those with room for the longest chain.
    num_rows: int
    num_chains: int


class HeldOut:
    """Batches of held-out samples, with the target's choice behind each of their tokens.

    Args:
        batches: kept in memory.
        target: whose head says what the target would have chosen.
    """

    def __init__(self, batches: Iterable[TensorBatch], target: Target) -> None:
        self._batches = [(batch, _choices(batch, target)) for batch in batches]

    @torch.inference_mode()
    def score(self, drafter: Drafter) -> Score:
        """Drafts chains of ``CHAIN`` tokens behind every row, along the text as it is.

        A draft is right where it is the token that the target thinks most likely behind the same
        text. The next one is asked for behind the text's own token, whatever was drafted, as in
        training-time test; where the answers are the target's own, greedily chosen, that is what
        happens in a server.
        """
        rows = [_hits(drafter, batch, choices) for batch, choices in self._batches]
        hits, is_counted = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return score_of(hits, is_counted)


def score_of(hits: torch.Tensor, is_counted: torch.Tensor) -> Score:
    """The score for bool [n, CHAIN] each: whether a draft is right, and whether it counts.

    A chain is accepted up to its first wrong draft. To that comes the token that the target
    chooses itself in the same pass, so with k drafted tokens between 1 and k + 1 are won.
    """
    first = hits[is_counted[:, 0], 0]
    chains = hits[is_counted.all(dim=1)]
    accepted = chains.cumprod(dim=1).cumsum(dim=1).double().mean(dim=0)
    return Score(
        agreement=float(first.double().mean()),
        acceptance=tuple((1 + accepted).tolist()),
        num_rows=len(first),
        num_chains=len(chains),
    )


def _hits(
    drafter: Drafter, batch: TensorBatch, choices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Bool [B * T, CHAIN] each: which drafts are the target's choice, and which count."""
    hits, counted = [], []
    for step, states in drafter.unroll(batch, CHAIN):
        asked = step.is_counted
        hit = torch.zeros_like(asked)
        hit[asked] = drafter.next_tokens(states[asked]) == step.answers(choices)[asked]
        hits.append(hit.flatten())
        counted.append(asked.flatten())
    return torch.stack(hits, dim=1), torch.stack(counted, dim=1)


def _choices(batch: TensorBatch, target: Target) -> torch.Tensor:
    """int64 [B, T]: the token that the target thinks most likely behind each token."""
    choices = torch.zeros_like(batch["input_ids"])
    is_token = batch["attention_mask"].bool()
    choices[is_token] = target.next_tokens(batch["last_states"][is_token])
    return choices
