"""The dataset card, as a hub reads it."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt
from statetap_contract import DeadLetter
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.reporting.dataset_card import CARD_MARK, dataset_card, size_category
from statetap_producer.reporting.foreign_text import visible
from statetap_producer.reporting.gather import gather
from statetap_producer.reporting.report_facts import DeadKind, DroppedKind, RunReport
from statetap_producer.run.run_folder import RunFolder

from .conftest import give_up, prompts_of
from .report_runs import planned_run, prompt, put
from .test_report_page import HOSTILE


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two samples of 10 and 12 tokens, a dead letter, a prompt that is pending."""
    run = planned_run(tmp_path / "cards", (prompt(n, 10 + n, (2, 5)) for n in range(4)))
    rows = prompts_of(run)
    put(run, rows[0])
    put(run, rows[2])
    give_up(run, rows[1].key, "mismatch")
    return run


def report_of(run: RunFolder) -> RunReport:
    return gather(run, None, num_samples=8, seed=0, on_progress=lambda _: None)


def front_matter(card: str) -> dict[str, object]:
    _, matter, _ = card.split("---\n", 2)
    found: dict[str, object] = yaml.safe_load(matter)
    return found


def tables(card: str) -> dict[str, str]:
    """All lines of tables: first cell to second."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", card, re.MULTILINE)
    return dict(rows)


def test_the_metadata_is_what_hubs_ask_for(run: RunFolder) -> None:
    """The hub's own library reads the fields; languages are not known, and left out."""
    card = dataset_card(report_of(run), "report.html")
    assert card.startswith("---\n")
    assert front_matter(card) == {
        "license": "other",
        "pretty_name": "Hidden states of tiny",
        "size_categories": ["n<1K"],
        "tags": ["hidden-states", "speculative-decoding", "eagle-3", "hdf5", "statetap"],
        "task_categories": ["text-generation"],
        "viewer": False,
    }
    data: Any = DatasetCard(card).data
    assert data.to_dict() == front_matter(card)
    assert CARD_MARK in card


def test_the_words_say_what_the_facts_are(run: RunFolder) -> None:
    """Numbers, shapes and digests, by hand; and that it is not complete."""
    card = dataset_card(report_of(run), "my report.html")
    assert "2 samples, 22 tokens, 1.2 kB" in card
    assert "(my%20report.html)" in card
    assert "of 4 planned prompts 1 are pending and 1 were given up on" in card
    cells = tables(card)
    assert cells["prompts planned"] == "4"
    assert cells["given up on by `mismatch`"] == "1"
    assert cells["tokens with loss, of those planned"] == "26%"
    assert cells["`states`"] == "[tokens, 12]"
    assert cells["capture spec"] == f"`{run.read_record().inputs.spec.digest}`"
    assert cells["server hosts"] == "`gpu-1`"
    assert "has had the final norm" in card
    assert "Samples have 10 to 12 tokens" in card


def test_a_capture_before_the_norm_says_so(run: RunFolder) -> None:
    """Which readers can train on it hangs on nothing else."""
    report = report_of(run)
    spec = dataclasses.replace(report.record.inputs.spec, norm="pre")
    inputs = dataclasses.replace(report.record.inputs, spec=spec)
    card = dataset_card(
        dataclasses.replace(report, record=dataclasses.replace(report.record, inputs=inputs)), "r"
    )
    assert "last hidden state before the final norm" in card
    assert "has not had the final norm" in card
    assert "has had the final norm" not in card


def test_its_example_reads_the_samples(run: RunFolder) -> None:
    """The lines of Python, as they stand there, where the shards are."""
    (code,) = re.findall(r"```python\n(.*?)```", dataset_card(report_of(run), "r"), re.DOTALL)
    shown = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=run.path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout == f"{prompts_of(run)[0].key} (10,) 3 (10, 12)\n"


@pytest.mark.parametrize("text", HOSTILE)
def test_what_comes_from_outside_is_text(run: RunFolder, text: str) -> None:
    """In a renderer that lets HTML through, and in the YAML, where it breaks no line."""
    report = report_of(run)
    plain = MarkdownIt("commonmark", {"html": True}).enable("table")
    spec = dataclasses.replace(report.record.inputs.spec, model=text, revision=text)
    inputs = dataclasses.replace(report.record.inputs, spec=spec, dataset=text)
    letter = DeadLetter("ab" * 16, text, text, 6, text, text)
    odd = dataclasses.replace(
        report,
        record=dataclasses.replace(report.record, inputs=inputs),
        origin=tuple(dataclasses.replace(each, values=(text,)) for each in report.origin),
        failures=dataclasses.replace(report.failures, dead=(DeadKind(text, 1, (letter,)),)),
        dropped=(DroppedKind(text, 1, (RowFault(text, 1, text, text),)),),
        faults=(text,),
    )
    card = dataset_card(odd, "r.html")
    card.encode()
    assert front_matter(card)["pretty_name"] == f"Hidden states of {visible(text)}"
    _, _, body = card.split("---\n", 2)
    html = plain.render(body).replace(CARD_MARK, "")
    tags = set(re.findall(r"<(/?\w+|!)", html))
    own = plain.render(dataset_card(report, "r.html").split("---\n", 2)[2]).replace(CARD_MARK, "")
    assert tags <= set(re.findall(r"<(/?\w+|!)", own))
    assert html.count("<tr>") == own.count("<tr>") + 1
    assert html.count("<h1>") == 1


@pytest.mark.parametrize(
    ("number", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (37_312, "10K<n<100K"),
        (999_999, "100K<n<1M"),
        (1_000_000, "1M<n<10M"),
        (5_000_000_000, "1B<n<10B"),
        (10**12, "n>1T"),
    ],
)
def test_size_categories_are_the_hubs(number: int, category: str) -> None:
    """As its own list of them has it."""
    assert size_category(number) == category
