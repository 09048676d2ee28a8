"""Which samples are trained on and which are held out."""

from dataclasses import replace

import numpy as np
from statetap_contract import CheckError
from statetap_producer.exporting.split import check_fraction, is_held_out
from statetap_store import SampleTable


def split(samples: SampleTable, fraction: float) -> tuple[SampleTable, SampleTable]:
    """The samples to train on, and those held out: the ones that ``statetap export`` holds out.

    Raises:
        UsageError: kind ``val-fraction``.
        CheckError: kind ``too-few-samples``: one of the two would be empty, or there are not two
            to train on.
    """
    check_fraction(fraction)
    is_out = np.array([is_held_out(entry.key, fraction) for entry in samples], dtype=bool)
    num_out = int(is_out.sum())
    if num_out == 0 or len(samples) - num_out < 2:  # noqa: PLR2004 - one has no neighbour
        raise CheckError(
            "too-few-samples",
            f"{num_out} of {len(samples)} samples would be held out; training takes at least two "
            "and measuring one: extract more, or choose another --val-fraction",
        )
    return _part(samples, ~is_out), _part(samples, is_out)


def _part(samples: SampleTable, is_in: np.ndarray) -> SampleTable:
    return replace(samples, records=samples.records[is_in], num_duplicates=0)
