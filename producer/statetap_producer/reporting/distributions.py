"""How prompts are distributed: by tokens, and by the part of them that the loss is taken over."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from statetap_producer.reporting.report_facts import LengthBins, MaskShares

#: Bins of lengths, at most, and of shares.
_MOST_BINS: Final = 40
_NUM_SHARES: Final = 20

#: A longest prompt this many times as long as 99% of them would press all others together.
_FAR: Final = 2


def length_bins(planned: Any, stored: npt.NDArray[np.int64]) -> LengthBins:
    """Bins in which both are counted.

    Args:
        planned: tokens of each planned prompt, integer [n].
        stored: tokens of each sample, [m].
    """
    longest = int(max(planned.max(initial=1), stored.max(initial=1)))
    most = int(np.quantile(planned, 0.99, method="inverted_cdf")) if len(planned) else longest
    is_far = longest > _FAR * most
    step = _round_step((most if is_far else longest) / _MOST_BINS)
    num_bins = -(-(most if is_far else longest) // step)
    is_open = longest > num_bins * step
    num_bins += is_open
    counts = [
        np.bincount(np.minimum((lengths - 1) // step, num_bins - 1), minlength=num_bins)
        for lengths in (planned, stored)
    ]
    return LengthBins(
        step=step,
        is_open=is_open,
        planned=tuple(counts[0].tolist()),
        stored=tuple(counts[1].tolist()),
        quantiles=_quantiles(stored) if len(stored) else None,
    )


def _quantiles(lengths: npt.NDArray[np.int64]) -> tuple[int, int, int, int, int]:
    """Lengths of real samples."""
    values = np.quantile(lengths, (0, 0.5, 0.95, 0.99, 1), method="inverted_cdf")
    shortest, middle, most, nearly_all, longest = map(int, values)
    return shortest, middle, most, nearly_all, longest


def _round_step(least: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50 and so on that is not below ``least``."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if step >= least:
                return step
        power *= 10


def mask_shares(num_loss: Any, num_tokens: Any) -> MaskShares:
    """Counts prompts by their share.

    Args:
        num_loss: of each prompt, the tokens that the loss is taken over, integer [n].
        num_tokens: its tokens, integer [n].
    """
    lengths = num_tokens.astype(np.int64)
    # In whole numbers: exactly 5% belongs to the first bin, whatever a float makes of it.
    numbers = np.maximum(-(-num_loss * _NUM_SHARES // lengths) - 1, 0)
    return MaskShares(
        bins=tuple(np.bincount(numbers, minlength=_NUM_SHARES).tolist()),
        num_empty=int((num_loss == 0).sum()),
        num_full=int((num_loss == lengths).sum()),
        num_loss_tokens=int(num_loss.sum()),
        num_tokens=int(lengths.sum()),
    )
