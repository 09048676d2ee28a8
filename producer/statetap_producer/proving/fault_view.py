"""How faults look in a terminal: a line each, the first ones."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text
from statetap_store import Fault

#: Faults listed; --json lists all.
_MOST_FAULTS: Final = 20


def fault_lines(faults: Sequence[Fault], style: str) -> Iterator[Text]:
    """Kind, in ``style``, and sentence of each fault, and how many more there are."""
    for fault in faults[:_MOST_FAULTS]:
        yield Text.assemble((fault.kind, style), f": {fault.message}")
    if len(faults) > _MOST_FAULTS:
        yield Text(f"and {len(faults) - _MOST_FAULTS:,} more; --json lists all")
