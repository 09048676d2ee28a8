"""Writes page and card: both or none, and over nothing that was not made here."""

from pathlib import Path
from typing import Final

from statetap_contract import MissingError, UsageError

from statetap_producer.reporting.dataset_card import CARD_MARK, dataset_card
from statetap_producer.reporting.report_facts import RunReport
from statetap_producer.reporting.report_page import report_page
from statetap_producer.run.durable_file import durable_file

#: Stands in every page that was made here.
PAGE_MARK: Final = '<meta name="generator" content="statetap report">'

#: The marks stand in the first bytes, also behind a long name.
_MARK_BYTES: Final = 1 << 16

CARD_NAME: Final = "README.md"


def refuse_out(out: Path) -> None:
    """Makes sure that page and card can be written, before any work is done.

    Raises:
        UsageError: kind ``report-name``: the name is not that of an HTML file. Kind
            ``report-taken``: there is something that was not made here.
        MissingError: kind ``report-folder``: the folder is not there.
    """
    if out.suffix.lower() not in {".html", ".htm"}:
        raise UsageError(
            "report-name", f"--out {out} is not the name of an HTML file; let it end in .html"
        )
    if not out.parent.is_dir():
        raise MissingError("report-folder", f"there is no folder {out.parent}; make it first")
    for path, mark in ((out, PAGE_MARK), (out.with_name(CARD_NAME), CARD_MARK)):
        if path.is_dir():
            raise UsageError("report-taken", f"{path} is a folder; give another file to --out")
        if path.exists() and not _has(path, mark):
            raise UsageError(
                "report-taken",
                f"{path} was not made by statetap report, and is left alone; give --out a file in "
                "another folder, or move it away",
            )


def _has(path: Path, mark: str) -> bool:
    try:
        with path.open("rb") as file:
            return mark.encode() in file.read(_MARK_BYTES)
    except OSError as error:
        raise MissingError(
            "report-unreadable", f"cannot look at {path} ({error.strerror}); give another to --out"
        ) from error


def write_report(report: RunReport, out: Path) -> Path:
    """Writes the page to ``out`` and the card beside it; gives the card's path.

    Raises:
        MissingError: kind ``report-unwritable``; the files there are as they were.
        UsageError, MissingError: as ``refuse_out``.
    """
    card = out.with_name(CARD_NAME)
    page_text, card_text = report_page(report), dataset_card(report, out.name)
    refuse_out(out)
    try:
        with durable_file(card) as card_file, durable_file(out) as page_file:
            page_file.write_text(page_text, encoding="utf-8")
            card_file.write_text(card_text, encoding="utf-8")
    except OSError as error:
        raise MissingError(
            "report-unwritable",
            f"cannot write {out} and {card} ({error.strerror or error}); make room or the folder "
            "writable, or give another file to --out",
        ) from error
    return card
