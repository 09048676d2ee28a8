"""The page, read as a browser's parser reads it."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from statetap_contract import DeadLetter
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.reporting.axis import LogAxis, compact, norm_words, round_top, time_ticks
from statetap_producer.reporting.foreign_text import (
    foreign_cell,
    foreign_html,
    foreign_markdown,
    visible,
)
from statetap_producer.reporting.gather import gather
from statetap_producer.reporting.report_facts import DeadKind, DroppedKind, RunReport
from statetap_producer.reporting.report_page import report_page
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import LeftOut

from .conftest import give_up, prompts_of
from .report_runs import SPEC, change_record, fail, planned_run, prompt, put

#: Elements without an end.
VOID = {"meta", "line", "rect", "polygon", "polyline", "path"}

#: What begins a line of its own.
BLOCKS = {"dt", "dd", "small", "li", "p", "td", "th", "h1", "h2", "h3", "div"}

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=http://evil.example/x onerror='alert(1)'>",
    "</style><style>*{display:none}",
    "{{ 7 * 7 }}{% raw %}",
    "\x00\x1b[31m\u202egnp.exe\ud800",
    "\u0645\u0631\u062d\u0628\u0627 \u4f60\u597d",
    "`|]]>-->\n\n# heading\n",
    "a`<img src=x onerror=alert(1)>`b",
    "x" * 10_000,
)


class Page(HTMLParser):
    """Tables as rows of texts, all text, all elements with their attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in BLOCKS:
            self.text += " "
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            return
        self.text += data
        if {"th", "td"} & set(self._open):
            self.tables[-1][-1][-1] += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())

    def table(self, first_heading: str) -> list[list[str]]:
        """The rows of a table, without its heading, each cell's blanks made one."""
        (table,) = [table for table in self.tables if table[0][0] == first_heading]
        return [[" ".join(cell.split()) for cell in row] for row in table[1:]]


def report_of(run: RunFolder) -> RunReport:
    return gather(run, None, num_samples=8, seed=0, on_progress=lambda _: None)


def page_of(run: RunFolder) -> Page:
    return Page(report_page(report_of(run)))


@pytest.fixture
def full(tmp_path: Path) -> RunFolder:
    """A run with something in every section."""
    run = planned_run(tmp_path / "full", (prompt(n, 10 + n, (2, 5)) for n in range(6)))
    rows = prompts_of(run)
    for row in rows[:3]:
        put(run, row)
    put(run, rows[3], worker="w-01", host="gpu-2")
    fail(run, rows[0].key, "mismatch")
    fail(run, rows[4].key, "mismatch", "http://b:30000")
    give_up(run, rows[4].key, "mismatch")
    change_record(run, num_duplicates=2, left_out=[LeftOut("too-long", 3, "a.jsonl", 7, "9 of 8")])
    return run


def test_the_page_says_what_the_facts_are(full: RunFolder) -> None:
    """Each table's cells, by hand."""
    page = page_of(full)
    for words in (
        "samples stored 4 of 6 planned prompts",
        f"tokens stored {10 + 11 + 12 + 13} of {sum(range(10, 16))}",
        "stored 4 (67%)",
        "dead 1 (17%)",
        "Stored samples have 10 to 13 tokens; half have at most 11,",
        "Tries that failed: 2.",
        "11 rows read from made.jsonl.",
        "duplicates 2 (18%)",
        "Over the 46 rows of 4 random samples (seed 0)",
    ):
        assert words in page.words
    assert [row[:1] + row[2:4] for row in page.table("server host")] == [
        ["gpu-1", "3", "33"],
        ["gpu-2", "1", "13"],
    ]
    assert [row[:1] + row[2:] for row in page.table("a try failed by")] == [
        ["mismatch", "2", "1", "1", "0"]
    ]
    ((kind, number, example),) = page.table("reason")
    assert (kind, number) == ("mismatch", "1")
    assert prompts_of(full)[4].key in example
    assert page.table("left out by") == [["too-long", "3", "a.jsonl:7: 9 of 8"]]
    assert [row[:1] + row[3:4] for row in page.table("slot")] == [
        ["h1", "5"],
        ["h3", "10"],
        ["last", "1"],
    ]
    assert [row[:3] + row[4:] for row in page.table("shard")] == [
        ["w-00-00001.h5", "open", "gpu-1", "3", "33", "1.7 kB"],
        ["w-01-00001.h5", "open", "gpu-2", "1", "13", "689 bytes"],
    ]
    spans = {"10": ("1", "1"), "14": ("1", "0")}
    rows = {row[0]: (row[1], row[2]) for row in page.table("tokens")}
    assert {span: rows[span] for span in spans} == spans


def test_the_page_loads_nothing_and_runs_nothing(full: RunFolder) -> None:
    """No script, no address but those within the page, and a policy that forbids the rest."""
    html = report_page(report_of(full))
    page = Page(html)
    names = {name for name, _ in page.elements}
    assert names.isdisjoint({"script", "img", "link", "iframe", "object", "embed", "base", "form"})
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "srcset", "xlink:href", "action", "data"):
            assert (attributes.get(name) or "#").startswith("#")
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    policies = [each["content"] for _, each in page.elements if "http-equiv" in each]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_can_be_read_without_looking_at_it(full: RunFolder) -> None:
    """Each drawing says in words what it shows or is hidden, and each heading of a table is one."""
    page = page_of(full)
    drawings = [attributes for name, attributes in page.elements if name == "svg"]
    assert len(drawings) > 8
    for attributes in drawings:
        assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
    assert all(
        attributes.get("scope") in ("col", "row")
        for name, attributes in page.elements
        if name == "th"
    )
    targets = {each["id"] for _, each in page.elements if "id" in each}
    links = [each["href"] for name, each in page.elements if name == "a"]
    assert links
    assert {f"#{target}" for target in targets} == set(links)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_outside_is_text(tmp_path: Path, text: str) -> None:
    """Model, dataset, hosts, reasons, messages, paths: nothing of them becomes markup."""
    run = planned_run(tmp_path / "odd", [prompt(0, 5)])
    spec = dataclasses.replace(SPEC, model=text, revision=text)
    inputs = dataclasses.replace(
        run.read_record().inputs, spec=spec, dataset=text, tokenizer_digest=text
    )
    letter = DeadLetter("ab" * 16, text, text, 6, text, text)
    fault = RowFault(text, 3, text, text)
    plain = page_of(run)
    put(run, prompts_of(run)[0])
    stored = report_of(run)
    odd = dataclasses.replace(
        stored,
        record=dataclasses.replace(stored.record, inputs=inputs),
        servers=tuple(dataclasses.replace(each, name=text) for each in stored.servers),
        shards=tuple(dataclasses.replace(each, name=text, host=text) for each in stored.shards),
        origin=tuple(dataclasses.replace(each, values=(text,)) for each in stored.origin),
        failures=dataclasses.replace(
            stored.failures,
            tried=(),
            dead=(DeadKind(text, 1, (letter,)),),
            tries_by_server=((text, 1), (text, 2)),
        ),
        dropped=(DroppedKind(text, 1, (fault,)),),
        faults=(text,),
        unseen=(text,),
    )
    html = report_page(odd)
    html.encode()
    page = Page(html)
    known = {name for name, _ in plain.elements} | {"bdi", "polyline", "polygon", "path", "rect"}
    known |= {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code", "figure", "line"}
    assert {name for name, _ in page.elements} <= known | {"h2", "h3", "b", "title", "g", "time"}
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]
    assert visible(text) in page.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\ud800-\udfff]", html)
    assert len(html) < 100_000


def test_a_page_does_not_grow_with_the_run(full: RunFolder) -> None:
    """Thousands of shards, workers and reasons: the first of each, and the number of the others."""
    report = report_of(full)
    many = dataclasses.replace(
        report,
        shards=report.shards[:1] * 5000,
        workers=report.workers[:1] * 5000,
        servers=report.servers[:1] * 300,
        faults=("x" * 5000,) * 900,
        dropped=report.dropped * 900,
    )
    html = report_page(many)
    page = Page(html)
    assert len(html) < 200_000
    assert page.table("shard")[-1][0] == "and 4,900 more"
    assert page.table("shard")[-1][4] == f"{4900 * 3:,}"
    assert page.table("worker process")[-1][0] == "and 4,988 more"
    assert "and 880 more" in page.words


def test_a_run_with_nothing_stored_has_a_page(tmp_path: Path) -> None:
    """It says so where the plots would be."""
    page = page_of(planned_run(tmp_path / "new", [prompt(0, 5)]))
    assert "Nothing is stored yet." in page.words
    assert "No sample is stored in shards that can be seen from here." in page.words
    assert "No states could be read." in page.words
    assert "first to last sample none no rate yet" in page.words


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\n", "a\\tb\\n"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202eabc", "\\u202eabc"),
        ("\udc80", "\\udc80"),
        ("\U0001f468\u200d\U0001f469 \u00e9", "\U0001f468\u200d\U0001f469 \u00e9"),
        ("ab" * 200, "ab" * 150 + "\u2026"),
    ],
)
def test_what_cannot_be_seen_is_shown_by_its_escape(text: str, shown: str) -> None:
    """And all that can be is left as it is, joined emoji too."""
    assert visible(text) == shown


def test_foreign_text_in_html_and_markdown() -> None:
    """Escaped and isolated in the one; in the other a span that no backtick ends."""
    assert foreign_html('<a href="x">&') == "<bdi>&lt;a href=&#34;x&#34;&gt;&amp;</bdi>"
    assert foreign_markdown("a|b") == "`a|b`"
    assert foreign_cell("a|b") == "`a\\|b`"
    assert foreign_markdown("a``b`") == "``` a``b` ```"
    assert foreign_markdown("") == "`   `"


@pytest.mark.parametrize(
    ("most", "end"),
    [(0, (1, 1)), (1, (1, 1)), (3, (3, 1)), (9, (9, 3)), (177, (200, 50)), (0.5, (0.6, 0.2))],
)
def test_axes_end_at_round_numbers(most: float, end: tuple[float, float]) -> None:
    """With room for the largest value, in steps of whole things where there are whole things."""
    assert round_top(most) == pytest.approx(end)


def test_labels_of_axes() -> None:
    """Short, and exact where they are short."""
    assert list(map(compact, (0, 950, 9500, 12_000, 1_250_000, 0.2, 5e12))) == [
        *("0", "950", "9,500", "12 k", "1.25 M", "0.2", "5 T"),
    ]
    assert list(map(norm_words, (0.17011, 62.04, 25_143.2, 3e20))) == [
        *("0.1701", "62.04", "25,143", "3e+20"),
    ]
    assert [(tick.at, tick.label) for tick in time_ticks(120)] == [
        *((0, "0 s"), (25, "30 s"), (50, "1 min"), (75, "1 min 30 s"), (100, "2 min")),
    ]
    assert time_ticks(86_400 * 1000)[-1].label == "1000 d"


def test_a_logarithmic_axis_has_room_for_everything() -> None:
    """Zero, infinity and what is no number stand at its ends."""
    axis = LogAxis.over([0.0, 5.0, 2000.0, float("inf")])
    assert (axis.low, axis.high) == (0, 4)
    assert axis.at(100.0) == 50
    assert [axis.at(value) for value in (0.0, float("nan"), float("inf"))] == [0, 0, 100]
    assert [tick.label for tick in axis.ticks()] == ["1", "10", "100", "1,000", "10 k"]
    assert LogAxis.over([]).ticks()[0].label == "1"
