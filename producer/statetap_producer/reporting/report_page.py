"""The report as one HTML page, which needs no network and no script."""

from functools import lru_cache
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup
from rich.filesize import decimal

from statetap_producer.reporting import charts
from statetap_producer.reporting.axis import norm_words
from statetap_producer.reporting.foreign_text import foreign_cell, foreign_html, foreign_markdown
from statetap_producer.reporting.report_facts import RunReport, Source
from statetap_producer.reporting.row_norms import FAR
from statetap_producer.terminal.counted import counted
from statetap_producer.terminal.durations import duration

#: Rows of each table; ``--json`` has all of them.
_MOST_SOURCES: Final = 12
_MOST_SHARDS: Final = 100
_MOST_KINDS: Final = 20

#: Values of one fact.
MOST_VALUES: Final = 5

_TEMPLATES: Final = Path(__file__).with_name("templates")


def report_page(report: RunReport) -> str:
    """The page's HTML, some 100 kB whatever the size of the run."""
    times = report.times
    page = templates().get_template("report.html.jinja")
    return page.render(
        report=report,
        made=f"{report.made[:10]} {report.made[11:19]} UTC",
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704 - ours
        record=report.record,
        spec=report.record.inputs.spec,
        counts=report.record.counts,
        numbers=report.numbers,
        holdings=report.holdings,
        lengths=charts.length_plot(report.lengths),
        length_rows=list(
            zip(
                charts.length_spans(report.lengths),
                report.lengths.planned,
                report.lengths.stored,
                strict=True,
            )
        ),
        mask=charts.mask_plot(report.mask),
        rates=times and charts.rate_plot(times),
        growth=times and charts.growth_plot(times),
        begun=times and charts.begun(times),
        sources=[
            ("server host", _shown_sources(report.servers)),
            ("worker process", _shown_sources(report.workers)),
        ],
        norms=report.norms and charts.norm_plot(report.norms),
        far=FAR,
        most_shards=_MOST_SHARDS,
        most_kinds=_MOST_KINDS,
        most_values=MOST_VALUES,
    )


def _shown_sources(
    sources: tuple[Source, ...],
) -> tuple[list[tuple[Source, tuple[tuple[float, float], ...]]], tuple[Source, ...]]:
    """The first sources, each with its small line, and those for which there is no room."""
    shown, others = sources[:_MOST_SOURCES], sources[_MOST_SOURCES:]
    most = max((max(charts.spark_sums(source)) for source in shown), default=0)
    return [(source, charts.spark_line(source, max(most, 1))) for source in shown], others


@lru_cache
def templates() -> Environment:
    """The templates of page and card; what they are given is escaped, or they fail."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=select_autoescape(("html.jinja",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "foreign": foreign_html,
        "span": foreign_markdown,
        "cell": foreign_cell,
        "n": "{:,}".format,
        "size": decimal,
        "duration": duration,
        "norm": norm_words,
        "factor": "{:,.3g}".format,
        "rate": lambda value: "unknown" if value is None else f"{value:,.0f}",
        "share": _share,
        "place": "{:.2f}".format,
    }
    environment.globals |= {"counted": counted}
    return environment


def _share(part: float, whole: float) -> str:
    """A part in percent: never 0% of what is there, nor 100% of what is not all."""
    if not whole:
        return "0%"
    if 0 < 100 * part < whole:
        return "under 1%"
    if 0 < 100 * (whole - part) < whole:
        return "over 99%"
    return f"{part / whole:.0%}"
