"""The dataset card: ``README.md`` as dataset hubs have it, metadata in YAML and words below."""

from bisect import bisect_right
from typing import Final
from urllib.parse import quote

from huggingface_hub import DatasetCardData

from statetap_producer.reporting.foreign_text import visible
from statetap_producer.reporting.report_facts import RunReport
from statetap_producer.reporting.report_page import MOST_VALUES, templates

#: Stands in every card that was made here, and in no other file.
CARD_MARK: Final = (
    "<!-- statetap report writes this file anew. To keep words of your own in it, take this line "
    "out. -->"
)

_MOST_KINDS: Final = 20


def dataset_card(report: RunReport, page_name: str) -> str:
    """The card's Markdown.

    Args:
        report: the facts.
        page_name: file name of the report's page, which lies beside it.
    """
    return (
        templates()
        .get_template("dataset_card.md.jinja")
        .render(
            front_matter=_front_matter(report),
            mark=CARD_MARK,
            page_link=quote(page_name, errors="surrogateescape"),
            report=report,
            record=report.record,
            spec=report.record.inputs.spec,
            counts=report.record.counts,
            numbers=report.numbers,
            most_values=MOST_VALUES,
            most_kinds=_MOST_KINDS,
        )
    )


def _front_matter(report: RunReport) -> str:
    spec = report.record.inputs.spec
    return (
        DatasetCardData(
            pretty_name=f"Hidden states of {visible(spec.model)}",
            license="other",
            task_categories=["text-generation"],
            size_categories=[size_category(report.numbers.stored)],
            tags=["hidden-states", "speculative-decoding", "eagle-3", "hdf5", "statetap"],
            # Hubs make tables of rows, which samples of different lengths are not.
            viewer=False,
        ).to_yaml(line_break="\n")
        + "\n"
    )


def size_category(number: int) -> str:
    """``n<1K``, ``1K<n<10K`` and so on, as hubs write it."""
    bounds = [f"{digits}{unit}" for unit in "KMBT" for digits in (1, 10, 100)][:10]
    place = bisect_right([10**power for power in range(3, 13)], number)
    if place == 0:
        return f"n<{bounds[0]}"
    if place == len(bounds):
        return f"n>{bounds[-1]}"
    return f"{bounds[place - 1]}<n<{bounds[place]}"
