"""Axes: where their ticks are, in percent of their length, and what is written there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from statetap_producer.terminal.durations import duration

_THOUSAND: Final = 1000
_MILLION: Final = 1_000_000
_UNITS: Final = (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12))
#: Up to here numbers are written out.
_WRITTEN_OUT: Final = 10_000

_DAY_S: Final = 86_400
_TIME_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800),
    *(3600, 2 * 3600, 3 * 3600, 6 * 3600, 12 * 3600, _DAY_S),
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the grid and its label."""

    #: Percent of the axis.
    at: float
    label: str


def compact(number: float) -> str:
    """``950``, ``9,500``, ``12 k``, ``1.25 M``: a number for the side of an axis."""
    if abs(number) < _WRITTEN_OUT:
        return f"{number:,.0f}" if number == int(number) else f"{number:,.3g}"
    name, unit = next((pair for pair in _UNITS if abs(number) < _THOUSAND * pair[1]), _UNITS[-1])
    return f"{number / unit:.3g} {name}"


def norm_words(value: float) -> str:
    """``0.1701``, ``62.04``, ``25,143``: a number of any size to four digits or to its units."""
    return f"{value:,.0f}" if _THOUSAND <= value < _MILLION else f"{value:.4g}"


def round_top(most: float, num_steps: int = 4) -> tuple[float, float]:
    """The end of an axis from 0 that has room for ``most``, and its step, both round numbers."""
    if most <= 0:
        return 1.0, 1.0
    power = 10.0 ** math.floor(math.log10(most / num_steps))
    step = next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit * num_steps >= most)
    if most >= 1:
        # Of whole things there is no half.
        step = max(1.0, step if step == int(step) else math.ceil(step))
    return math.ceil(round(most / step, 9)) * step, step


def count_ticks(top: float, step: float) -> tuple[Tick, ...]:
    """Ticks from 0 to the end of an axis."""
    return tuple(
        Tick(100 * number * step / top, compact(number * step))
        for number in range(round(top / step) + 1)
    )


def time_ticks(seconds: float, num_steps: int = 4) -> tuple[Tick, ...]:
    """Ticks at whole seconds, minutes, hours or days from a beginning."""
    step = next(
        (step for step in _TIME_STEPS if step * num_steps >= seconds),
        math.ceil(seconds / num_steps / _DAY_S) * _DAY_S,
    )
    return tuple(
        Tick(100 * number * step / seconds, duration(number * step))
        for number in range(int(seconds // step) + 1)
    )


@dataclass(frozen=True, slots=True)
class LogAxis:
    """An axis on which equal factors are equal lengths, from one power of ten to another."""

    low: int
    high: int

    @classmethod
    def over(cls, values: Sequence[float]) -> "LogAxis":
        """The shortest one with room for all of these that are positive and finite."""
        logs = [math.log10(value) for value in values if 0 < value < math.inf] or [0.0]
        low, high = math.floor(min(logs)), math.ceil(max(logs))
        return cls(low, max(high, low + 1))

    def at(self, value: float) -> float:
        """The place of a value in percent; what is off the axis stands at its end."""
        if math.isnan(value) or value <= 0:
            return 0.0
        if math.isinf(value):
            return 100.0
        place = 100 * (math.log10(value) - self.low) / (self.high - self.low)
        return min(max(place, 0.0), 100.0)

    def ticks(self) -> tuple[Tick, ...]:
        """Powers of ten, each one of them or, where these are many, some."""
        every = max(1, (self.high - self.low) // 6)
        return tuple(
            Tick(self.at(10.0**power), compact(10.0**power) if power >= 0 else f"{10.0**power:g}")
            for power in range(self.low, self.high + 1, every)
        )
