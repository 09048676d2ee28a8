"""Lengths of time, for people."""

from typing import Final

_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


def duration(seconds: float) -> str:
    """``42 s``, ``7 min 5 s``, ``3 h 20 min``, ``4 d 6 h``: the two largest units."""
    whole = round(seconds)
    for unit, unit_name, part, part_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= unit:
            units, rest = divmod(whole, unit)
            parts = f" {rest // part} {part_name}" if rest >= part else ""
            return f"{units} {unit_name}{parts}"
    return f"{whole} s"
