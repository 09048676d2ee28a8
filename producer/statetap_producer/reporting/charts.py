"""The charts of a report, as places in percent that the page's template draws.

Shapes are stretched to the width of the page, text is not: labels are HTML beside the drawing, so
that they have the same size on a telephone and on paper.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Final

from statetap_producer.reporting.axis import (
    LogAxis,
    Tick,
    compact,
    count_ticks,
    norm_words,
    round_top,
    time_ticks,
)
from statetap_producer.reporting.report_facts import (
    LengthBins,
    MaskShares,
    RowNorms,
    Source,
    TimeBins,
)
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.durations import duration

#: Part of a bar's place that is left free.
_GAP: Final = 0.12

#: Percent of an axis up to which a tick leaves room for the word at its end.
_LAST_TICK: Final = 88.0

#: Points of the small line in a table.
_SPARK_POINTS: Final = 60


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, and a paler one behind it. All in percent of the plot."""

    left: float
    width: float
    height: float
    back_height: float
    #: What it stands for, in words.
    words: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Bars or a line over two axes."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    bars: tuple[Bar, ...] = ()
    #: Points of the line, in percent from the lower left.
    line: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class NormStrip:
    """One slot's norms on the common axis, in percent."""

    slot: str
    #: Smallest, 1%, 25%, median, 75%, 99%, largest.
    places: tuple[float, ...]
    outliers: tuple[float, ...]
    words: str


@dataclass(frozen=True, slots=True)
class NormPlot:
    """All slots over one logarithmic axis."""

    x_ticks: tuple[Tick, ...]
    strips: tuple[NormStrip, ...]


def length_plot(bins: LengthBins) -> Plot:
    """Planned prompts by tokens, and before them those that are stored."""
    top, step = round_top(max(*bins.planned, *bins.stored))
    num_bins = len(bins.planned)
    words = [
        f"{span} tokens: {counted(planned, 'prompt')} planned, {stored:,} stored"
        for span, planned, stored in zip(length_spans(bins), bins.planned, bins.stored, strict=True)
    ]
    closed = bins.step * (num_bins - bins.is_open)
    x_ticks = [
        Tick(100 * tick / (num_bins * bins.step), compact(tick))
        for tick in range(0, closed + 1, round(round_top(closed)[1]))
    ]
    if bins.is_open:
        x_ticks = [tick for tick in x_ticks if tick.at < _LAST_TICK]
        x_ticks.append(Tick(100.0, "longer"))
    return Plot(
        tuple(x_ticks), count_ticks(top, step), _bars(bins.stored, bins.planned, top, words)
    )


def length_spans(bins: LengthBins) -> list[str]:
    """``1 to 50``, ``51 to 100`` and so on."""
    ends = range(bins.step, (len(bins.planned) + 1) * bins.step, bins.step)
    spans = [f"{end - bins.step + 1:,} to {end:,}" if bins.step > 1 else f"{end:,}" for end in ends]
    if bins.is_open:
        spans[-1] = f"more than {(len(bins.planned) - 1) * bins.step:,}"
    return spans


def mask_plot(shares: MaskShares) -> Plot:
    """Planned prompts by the part of their tokens that the loss is taken over."""
    top, step = round_top(max(shares.bins))
    width = 100 // len(shares.bins)
    words = [
        f"{number * width}% to {(number + 1) * width}%: {counted(count, 'prompt')}"
        for number, count in enumerate(shares.bins)
    ]
    ticks = tuple(Tick(float(share), f"{share}%") for share in range(0, 101, 25))
    return Plot(ticks, count_ticks(top, step), _bars(shares.bins, (), top, words))


def _bars(
    counts: Sequence[float], back: Sequence[float], top: float, words: Sequence[str]
) -> tuple[Bar, ...]:
    width = 100 / len(counts)
    return tuple(
        Bar(
            left=(number + _GAP / 2) * width,
            width=(1 - _GAP) * width,
            height=100 * count / top,
            back_height=100 * back[number] / top if back else 0.0,
            words=words[number],
        )
        for number, count in enumerate(counts)
    )


def rate_plot(bins: TimeBins) -> Plot:
    """Tokens a second in each interval."""
    rates = [tokens / bins.interval_s for tokens in bins.tokens]
    top, step = round_top(max(rates))
    words = [f"{_moment(bins, number)}: {rate:,.0f} tokens/s" for number, rate in enumerate(rates)]
    return Plot(_elapsed(bins), count_ticks(top, step), _bars(rates, (), top, words))


def growth_plot(bins: TimeBins) -> Plot:
    """Tokens stored up to each moment."""
    sums = list(accumulate(bins.tokens, initial=0))
    top, step = round_top(sums[-1])
    line = tuple(
        (100 * number / len(bins.tokens), 100 * total / top) for number, total in enumerate(sums)
    )
    return Plot(_elapsed(bins), count_ticks(top, step), line=line)


def _elapsed(bins: TimeBins) -> tuple[Tick, ...]:
    return time_ticks(bins.interval_s * len(bins.tokens))


def _moment(bins: TimeBins, number: int) -> str:
    begin_s = number * bins.interval_s
    return f"{duration(begin_s)} to {duration(begin_s + bins.interval_s)}"


def begun(bins: TimeBins) -> str:
    """When the first sample was stored."""
    moment = datetime.fromtimestamp(bins.begin_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def spark_line(source: Source, most: float) -> tuple[tuple[float, float], ...]:
    """A source's tokens over time, in percent of ``most`` a point."""
    sums = spark_sums(source)
    last = max(len(sums) - 1, 1)
    return tuple((100 * number / last, 100 * value / most) for number, value in enumerate(sums))


def spark_sums(source: Source) -> list[int]:
    """Its tokens in as many intervals as a small line has points."""
    tokens = source.tokens
    size = -(-len(tokens) // _SPARK_POINTS)
    sums = [sum(tokens[start : start + size]) for start in range(0, len(tokens), size)]
    return sums if len(sums) > 1 else sums * 2


def norm_plot(norms: RowNorms) -> NormPlot:
    """The spread of each slot's norms, and the rows far outside it."""
    values = [value for slot in norms.slots for value in slot.quantiles]
    axis = LogAxis.over([*values, *(row.norm for row in norms.outliers)])
    strips = tuple(
        NormStrip(
            slot=slot.slot,
            places=tuple(map(axis.at, slot.quantiles)),
            outliers=tuple(axis.at(row.norm) for row in norms.outliers if row.slot == slot.slot),
            words="slot {}: median {}, 98% of the rows from {} to {}, all from {} to {}".format(
                slot.slot, *(norm_words(slot.quantiles[place]) for place in (3, 1, 5, 0, 6))
            ),
        )
        for slot in norms.slots
    )
    return NormPlot(axis.ticks(), strips)
