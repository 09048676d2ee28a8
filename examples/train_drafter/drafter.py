"""Drafter: EAGLE-3's, one decoder layer between the target's embedding and the target's head."""

from collections.abc import Iterator

import torch
from statetap_contract import UsageError
from statetap_store.torch_collate import TensorBatch
from torch import nn

from train_drafter.alignment import DraftStep
from train_drafter.draft_attention import HEAD_WIDTH, DraftAttention, Past
from train_drafter.target import Target

#: First weight of the norm before the head. The head is the target's; with 1 a new drafter would be
#: sure of what it says, and the first epoch goes by with unlearning that.
_FIRST_NORM_WEIGHT = 0.2


class Drafter(nn.Module):
    """Learns fusion, layer and norms. Embedding and head are the target's and stay as they are.

    All is float32: a processor without AMX multiplies bfloat16 more slowly.

    Args:
        target: whose tokens it drafts.
        num_aux: aux layers in a row.
        vocabulary: int64 [n], ascending: the target's tokens that it can say.

    Raises:
        UsageError: kind ``hidden-size-odd``: the target's states do not divide into heads.
    """

    def __init__(self, target: Target, num_aux: int, vocabulary: torch.Tensor) -> None:
        super().__init__()
        hidden_size = target.embedding.shape[1]
        if hidden_size % HEAD_WIDTH:
            raise UsageError(
                "hidden-size-odd",
                f"the target's hidden size {hidden_size} is no multiple of {HEAD_WIDTH}, the width "
                "of this drafter's attention heads; take a model for which it is",
            )
        self.embedding: torch.Tensor
        self.head: torch.Tensor
        self.vocabulary: torch.Tensor
        # Not saved: the target has them.
        self.register_buffer("embedding", target.embedding.float(), persistent=False)
        self.register_buffer("head", target.head[vocabulary].float(), persistent=False)
        self.register_buffer("vocabulary", vocabulary)
        self.fusion = nn.Linear(num_aux * hidden_size, hidden_size, bias=False)
        self.token_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.state_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.attention = DraftAttention(hidden_size)
        self.mlp_norm = nn.RMSNorm(hidden_size, eps=1e-5)
        self.mlp = GatedMlp(hidden_size, hidden_size)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-5)
        nn.init.constant_(self.norm.weight, _FIRST_NORM_WEIGHT)

    def unroll(
        self, batch: TensorBatch, num_steps: int
    ) -> Iterator[tuple[DraftStep, torch.Tensor]]:
        """Drafts ``num_steps`` tokens behind every row, each from the step before it.

        Yields:
            What was asked, and the drafter's [B, T, hidden_size] for it; ``logits`` makes its
            answer of that.
        """
        states = self.fusion(self._normed(batch["aux_states"].float()))
        past: Past = []
        for number in range(num_steps):
            step = DraftStep.of(batch, number)
            states = self.layer(step.tokens, states, past)
            yield step, states

    def _normed(self, aux: torch.Tensor) -> torch.Tensor:
        """Aux states [..., layers * hidden_size], every layer's brought to the same size.

        A target's states grow by a factor of ten from its first layers to its last, and those of
        some tokens by hundreds. Beside such sums nothing that a new layer adds would be seen.
        """
        layers = aux.view(*aux.shape[:-1], -1, self.norm.weight.shape[0])
        return nn.functional.rms_norm(layers, layers.shape[-1:], eps=1e-5).flatten(-2)

    def layer(self, tokens: torch.Tensor, states: torch.Tensor, past: Past) -> torch.Tensor:
        """The decoder layer: int64 [B, T] and [B, T, hidden_size] to [B, T, hidden_size]."""
        embedded = self.embedding[tokens]
        inputs = torch.cat([self.token_norm(embedded), self.state_norm(states)], dim=-1)
        states = states + self.attention(inputs, past)
        drafted: torch.Tensor = states + self.mlp(self.mlp_norm(states))
        return drafted

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocabulary] from the drafter's [n, hidden_size]."""
        return self.target_logits(self.norm(states))

    def target_logits(self, last: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocabulary] from the target's last hidden states: the answers to learn."""
        return last.float() @ self.head.T

    def next_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """int64 [n], the target's tokens that it drafts, from its [n, hidden_size]."""
        return self.vocabulary[self.logits(states).argmax(dim=-1)]


class GatedMlp(nn.Module):
    """SwiGLU, as in Llama."""

    def __init__(self, hidden_size: int, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, width, bias=False)
        self.up = nn.Linear(hidden_size, width, bias=False)
        self.down = nn.Linear(width, hidden_size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] to the same."""
        mixed: torch.Tensor = self.down(nn.functional.silu(self.gate(states)) * self.up(states))
        return mixed
