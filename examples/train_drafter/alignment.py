"""Which row answers for which token. Samples come unshifted; all shifting is done here.

Row t of a sample is what its target made of tokens 0 to t, so the last hidden state of row t is the
target's word on what token t + 1 will be. When a server drafts behind row t, the target has just
chosen token t + 1. The drafter takes the aux states of row t and the embedding of token t + 1, and
is asked what the target will say to that: the last hidden state of row t + 1, about token t + 2.

Each further step is one token later: the drafter's own output takes the place of the aux states.
"""

from dataclasses import dataclass

import torch
from statetap_store.torch_collate import TensorBatch


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What all rows of B samples of T tokens are given and asked in one step."""

    #: From 0.
    number: int
    #: int64 [B, T], the tokens whose embeddings the drafter takes.
    tokens: torch.Tensor
    #: bool [B, T], whether the token asked for exists and the loss is taken over it.
    is_counted: torch.Tensor

    @classmethod
    def of(cls, batch: TensorBatch, number: int) -> "DraftStep":
        """Step ``number`` of every row of a batch."""
        return cls(
            number=number,
            tokens=ahead(batch["input_ids"], number + 1),
            is_counted=ahead(batch["loss_mask"], number + 2).bool(),
        )

    def answers(self, said: torch.Tensor) -> torch.Tensor:
        """What the target says to each row's draft, from what it says at its own rows.

        Both are [B, T, ...].
        """
        return ahead(said, self.number + 1)


def ahead(rows: torch.Tensor, distance: int) -> torch.Tensor:
    """[B, T, ...]: at row t what ``rows`` has at t + distance, zeros where that is past the end."""
    shifted = torch.zeros_like(rows)
    if distance < rows.shape[1]:
        shifted[:, : rows.shape[1] - distance] = rows[:, distance:]
    return shifted
