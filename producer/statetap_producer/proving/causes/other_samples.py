"""Hypotheses about samples: that the rows are those of another one."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import torch
from statetap_store import SampleEntry, SampleTable

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation
from statetap_producer.proving.causes.row_hypotheses import likely_offsets, shifted
from statetap_producer.proving.compared_sample import JudgedSample

#: Samples that are tried for one, of those that were stored next to it in time.
_NUM_NEIGHBOURS: Final = 8

#: Samples that are tried in all; each costs a forward pass.
_MOST_OTHERS: Final = 64


def likely_others(
    table: SampleTable, wrong: Sequence[SampleEntry], chosen: Sequence[SampleEntry]
) -> list[SampleEntry]:
    """Samples whose states may lie where those of ``wrong`` should, likeliest first.

    Requests that ran side by side are the ones that are mixed up: their samples were stored one
    soon after the other. After them come the samples that were chosen.
    """
    in_time = np.argsort(table.records["time_ns"], kind="stable")
    place_in_time = {
        table.records["key"][place]: number for number, place in enumerate(in_time.tolist())
    }
    likely = {}
    half = _NUM_NEIGHBOURS // 2
    for entry in wrong:
        middle = place_in_time[entry.key.encode()]
        for place in in_time[max(middle - half, 0) : middle + half + 1].tolist():
            likely[table[place].key] = table[place]
    likely |= {entry.key: entry for entry in chosen}
    return list(likely.values())[:_MOST_OTHERS]


def rows_of_other(
    sample: JudgedSample, slot: int, key: str, theirs: torch.Tensor
) -> Iterator[Explanation]:
    """Rows of sample ``key``, [m, hidden_size], at the same place there or at another one."""
    for offset in dict.fromkeys((0, *likely_offsets(sample, slot, theirs))):
        where = f", {abs(offset):,} {'further on' if offset > 0 else 'further up'} there"
        text = f"the rows are those of sample {key}{where if offset else ''}"
        yield shifted(sample, slot, theirs, offset, Cause("other-sample", text))
