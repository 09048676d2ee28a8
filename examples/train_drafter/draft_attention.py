"""Attention of a drafter that takes its own output as its next input, as in training-time test.

In step 0 all rows are the target's. In step k each row has gone k tokens further alone: it sees the
rows of step 0 up to its own, and of each later step only what it made itself there. No other row
may be seen, for they are other drafts of the same tokens.
"""

import torch
from torch import nn

#: Elements of an attention head.
HEAD_WIDTH = 64

_ROPE_BASE = 10_000.0

#: Keys and values of each step so far, [B, 1, T, HEAD_WIDTH] each: all heads share them.
Past = list[tuple[torch.Tensor, torch.Tensor]]


class DraftAttention(nn.Module):
    """Causal attention with rotary positions, on embedding and hidden state side by side.

    Args:
        hidden_size: of the target, a multiple of ``HEAD_WIDTH``.
    """

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(2 * hidden_size, HEAD_WIDTH, bias=False)
        self.value = nn.Linear(2 * hidden_size, HEAD_WIDTH, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, inputs: torch.Tensor, past: Past) -> torch.Tensor:
        """One step of all rows.

        Args:
            inputs: [B, T, 2 * hidden_size].
            past: of the steps before; this one's keys and values are put behind them.

        Returns:
            [B, T, hidden_size].
        """
        step = len(past)
        query, key = (
            rotated(self._heads(part(inputs)), first_position=step)
            for part in (self.query, self.key)
        )
        past.append((key, self._heads(self.value(inputs))))
        mixed = attend(query, past)
        merged: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return merged

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """[B, T, heads * HEAD_WIDTH] as [B, heads, T, HEAD_WIDTH]."""
        return rows.view(*rows.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def attend(query: torch.Tensor, past: Past) -> torch.Tensor:
    """What each row takes from the rows of step 0 up to its own and from its own later steps.

    Args:
        query: [B, heads, T, HEAD_WIDTH], of the last step in ``past``.
        past: keys and values of all steps, this one's too, one for all heads or one each.

    Returns:
        [B, heads, T, HEAD_WIDTH].
    """
    (key, value), *own = past
    if not own:
        # The same, a row of scores at a time: it never holds T x T of them.
        key, value = key.expand_as(query), value.expand_as(query)
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    query = query * query.shape[-1] ** -0.5
    num_tokens = query.shape[2]
    is_later = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=query.device).triu(1)
    scores = (query @ key.transpose(2, 3)).masked_fill(is_later, -torch.inf)
    own_scores = [(query * key).sum(-1, keepdim=True) for key, _ in own]
    shares = torch.cat([scores, *own_scores], dim=-1).softmax(-1)
    mixed = shares[..., :num_tokens] @ value
    for place, (_, own_value) in enumerate(own, num_tokens):
        mixed = mixed + shares[..., place : place + 1] * own_value
    return mixed


def rotated(heads: torch.Tensor, first_position: int) -> torch.Tensor:
    """[B, heads, T, HEAD_WIDTH] with rotary positions from ``first_position`` on."""
    half = heads.shape[-1] // 2
    frequencies = _ROPE_BASE ** (-torch.arange(half, device=heads.device) / half)
    positions = torch.arange(heads.shape[2], device=heads.device) + first_position
    angles = positions[:, None] * frequencies
    cosine, sine = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = torch.split(heads, half, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
