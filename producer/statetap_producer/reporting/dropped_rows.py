"""Rows of the dataset that are not in the plan: how many, why, and which came first."""

import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

from statetap_contract.strict_json import read_record

from statetap_producer.reading.row_fault import RowFault
from statetap_producer.reporting.report_facts import DroppedKind
from statetap_producer.run.run_record import LeftOut

_MOST_EXAMPLES: Final = 3


def dropped_rows(reasons: tuple[LeftOut, ...], left_out: Path) -> tuple[DroppedKind, ...]:
    """The reasons of the run record, with examples from the file of the rows left out.

    Where that file is gone or damaged, the record still has the first row of each reason.
    """
    examples = _examples(reasons, left_out)
    return tuple(
        DroppedKind(
            reason.kind,
            reason.num_rows,
            tuple(examples[reason.kind])
            or (RowFault(reason.first_file, reason.first_line, reason.kind, reason.first_message),),
        )
        for reason in reasons
    )


def _examples(reasons: tuple[LeftOut, ...], left_out: Path) -> defaultdict[str, list[RowFault]]:
    """Reads until each reason has its examples: the file may have a line for every row."""
    found: defaultdict[str, list[RowFault]] = defaultdict(list)
    num_wanted = sum(min(reason.num_rows, _MOST_EXAMPLES) for reason in reasons)
    with suppress(FileNotFoundError), left_out.open("rb") as lines:
        for line in lines:
            if num_wanted <= 0:
                break
            try:
                fault = read_record(RowFault, json.loads(line), "the row")
            except (ValueError, RecursionError):
                continue
            if len(found[fault.kind]) < _MOST_EXAMPLES:
                found[fault.kind].append(fault)
                num_wanted -= 1
    return found
