"""When tokens were stored, in all and by server and worker, by the times beside the samples."""

from collections.abc import Sequence
from itertools import chain, count, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
from statetap_store.shard_names import writer_of

from statetap_producer.reporting.report_facts import Source, TimeBins
from statetap_producer.reporting.stored_samples import StoredSamples

_NS: Final = 1_000_000_000

_MOST_BINS: Final = 120

#: Seconds that people count in; after these, days.
_INTERVALS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600),
)
_DAY_S: Final = 24 * 3600

#: Samples written within less time say nothing of a rate.
_SHORTEST_S: Final = 1.0


def time_bins(samples: StoredSamples) -> TimeBins | None:
    """Tokens by time; None without a sample."""
    if not len(samples.table):
        return None
    times = samples.time_ns
    begin_ns = int(times.min())
    interval_s = _interval_s((int(times.max()) - begin_ns) / _NS)
    tokens = _binned(times, samples.num_tokens, begin_ns, interval_s)
    return TimeBins(begin_ns, interval_s, tuple(tokens))


def _interval_s(seconds: float) -> int:
    return next(
        interval
        for interval in chain(_INTERVALS_S, count(_DAY_S, _DAY_S))
        if seconds < interval * _MOST_BINS
    )


def _binned(
    times: npt.NDArray[np.int64],
    num_tokens: npt.NDArray[np.int64],
    begin_ns: int,
    interval_s: int,
    num_bins: int = 0,
) -> list[int]:
    numbers = (times - begin_ns) // (interval_s * _NS)
    # Exact up to 2^53 tokens.
    sums = np.bincount(numbers, weights=num_tokens, minlength=num_bins)
    return [int(value) for value in sums]


def servers(samples: StoredSamples, bins: TimeBins | None) -> tuple[Source, ...]:
    """What each server host computed."""
    return _sources(samples, [part.host for part in samples.provenances], bins)


def workers(samples: StoredSamples, bins: TimeBins | None) -> tuple[Source, ...]:
    """What each worker process stored; its shards have its name."""
    return _sources(samples, [writer_of(path.name) for path in samples.table.shards], bins)


def _sources(
    samples: StoredSamples, names: Sequence[str], bins: TimeBins | None
) -> tuple[Source, ...]:
    """Sources by tokens, of which each shard names one."""
    if bins is None:
        return ()
    distinct = sorted(set(names))
    number_of = {name: number for number, name in enumerate(distinct)}
    numbers = np.array([number_of[name] for name in names])[samples.shard_numbers]
    # Sorted by source, the samples of each are a slice: no pass over all of them for each source.
    order = np.argsort(numbers, kind="stable")
    times, num_tokens = samples.time_ns[order], samples.num_tokens[order]
    starts = np.searchsorted(numbers[order], np.arange(len(distinct) + 1)).tolist()
    found = [
        _source(name, times[start:end], num_tokens[start:end], bins)
        for name, (start, end) in zip(distinct, pairwise(starts), strict=True)
        if start < end
    ]
    return tuple(sorted(found, key=lambda source: (-source.num_tokens, source.name)))


def _source(
    name: str, times: npt.NDArray[np.int64], num_tokens: npt.NDArray[np.int64], bins: TimeBins
) -> Source:
    seconds = float(times.max() - times.min()) / _NS
    total = int(num_tokens.sum())
    # The time begins when the first sample was stored, and says nothing of how long that one took.
    first = int(num_tokens[times == times.min()].sum())
    tokens = _binned(times, num_tokens, bins.begin_ns, bins.interval_s, len(bins.tokens))
    return Source(
        name=name,
        num_samples=len(times),
        num_tokens=total,
        tokens_per_s=(total - first) / seconds if seconds >= _SHORTEST_S else None,
        tokens=tuple(tokens),
    )
