"""Which samples are held out for validation."""

import hashlib
from typing import Final

from statetap_contract import UsageError

_DIGEST_BYTES: Final = 8


def check_fraction(fraction: float) -> None:
    """Raises UsageError, kind ``val-fraction``, for one that is not in [0, 1)."""
    if not 0 <= fraction < 1:
        raise UsageError(
            "val-fraction",
            f"--val-fraction {fraction:g} is no share of the samples: give at least 0 and less "
            "than 1, such as 0.05",
        )


def is_held_out(key: str, fraction: float) -> bool:
    """Whether a sample is for validation.

    Its key alone decides, so a sample stays on its side whatever else is in the dataset, and a
    larger fraction holds out all that a smaller one does.

    Args:
        key: the sample's.
        fraction: share of samples to hold out, in [0, 1).
    """
    digest = hashlib.blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big") < fraction * 2.0 ** (8 * _DIGEST_BYTES)
