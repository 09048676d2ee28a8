"""One line for each event, whatever the text in it."""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statetap_worker.log_lines import logfmt

#: Everything that any program takes for the end of a line.
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"=]*)(?: |$)')


def parse(line: str) -> dict[str, str]:
    """The fields of a line; fails where it is more than a row of pairs."""
    fields = {}
    position = 0
    while position < len(line):
        pair = PAIR.match(line, position)
        assert pair is not None, line[position:]
        name, value = pair.groups()
        assert name not in fields
        fields[name] = json.loads(value) if value.startswith('"') else value
        position = pair.end()
    return fields


def log(code: str, level: str = "warning") -> list[dict[str, str]]:
    """The lines that a program leaves which logs through ``configure``."""
    program = f"""
import logging, os, sys, threading, warnings
import structlog
from statetap_worker import log_lines
log_lines.configure({level!r}, "w")
ours = structlog.get_logger("statetap_worker.x")
theirs = logging.getLogger("celery.x")
{code}
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=False
    )
    assert ended.stdout == b""
    lines = ended.stderr.decode("ascii").removesuffix("\n")
    return [parse(line) for line in lines.split("\n")] if lines else []


@given(st.lists(st.text(st.characters(codec=None)), min_size=1, max_size=4))
def test_no_text_forges_a_line(values: list[str]) -> None:
    """Lone surrogates, quotes, control characters: what is read is what was logged, in one line."""
    fields = {f"f{number}": value for number, value in enumerate(values)}
    line = logfmt(fields)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert parse(line) == fields


@pytest.mark.parametrize("end", LINE_ENDS)
def test_no_character_ends_a_line(end: str) -> None:
    """Whatever a reader takes for the end of one."""
    line = logfmt({"why": f"a{end}time=2026-01-01T00:00:00.000Z level=error event=forged"})
    assert len(line.splitlines()) == 1
    assert parse(line).keys() == {"why"}


def test_plain_words_and_numbers_are_bare() -> None:
    """As people write them and search for them."""
    assert (
        logfmt({"key": "ab12", "tokens": 7, "ms": 1.5, "at": "http://h:1/x", "run": None, "no": ""})
        == 'key=ab12 tokens=7 ms=1.5 at=http://h:1/x no=""'
    )


def test_a_long_value_loses_its_middle() -> None:
    """A message of megabytes is no line; its begin and its end tell most."""
    line = logfmt({"why": "a" * 1_000_000 + "z" * 1_000_000})
    assert len(line) < 8_100
    assert line.startswith('why="aaaa')
    assert line.endswith('zzzz"')
    assert "1992000 characters" in line


def test_an_event_of_ours() -> None:
    """Time, level, process, logger and event come first, in this order, then the fields."""
    (line,) = log('ours.warning("attempt failed", key="ab", why="two\\nlines")')
    assert list(line) == ["time", "level", "process", "logger", "event", "key", "why"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "process": "w",
        "logger": "statetap_worker.x",
        "event": "attempt failed",
        "key": "ab",
        "why": "two\nlines",
    }


def test_a_record_of_a_library() -> None:
    """With its arguments in place and its traceback in the same line."""
    (line,) = log(
        """
try:
    1 / 0
except ZeroDivisionError:
    theirs.error("task %s\\nfailed", "t-1", exc_info=True)
"""
    )
    assert (line["logger"], line["event"]) == ("celery.x", "task t-1\nfailed")
    assert line["exception"].splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("level", "events"),
    [
        ("error", ["e", "E"]),
        ("warning", ["w", "e", "W", "E"]),
        ("info", ["i", "w", "e", "W", "E"]),
        ("debug", ["d", "i", "w", "e", "D", "I", "W", "E"]),
    ],
)
def test_levels(level: str, events: list[str]) -> None:
    """At info libraries are as quiet as before: they have several lines for each sample."""
    code = """
for logger, names in ((ours, "diwe"), (theirs, "DIWE")):
    for name, say in zip(names, (logger.debug, logger.info, logger.warning, logger.error)):
        say(name)
"""
    assert [line["event"] for line in log(code, level)] == events


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('ended')",
        "thread = threading.Thread(target=lambda: int('ended')); thread.start(); thread.join()",
    ],
)
def test_what_nobody_caught(code: str) -> None:
    """A traceback is one line, of the process and of a thread."""
    (line,) = log(code)
    assert (line["level"], line["event"]) == ("critical", "uncaught")
    assert "ValueError" in line["exception"]
    assert "ended" in line["exception"]


def test_a_record_that_cannot_be_formatted() -> None:
    """Somebody's wrong arguments cost that line, and leave no traceback."""
    first, second = log("theirs.warning('%d', 'x'); theirs.warning('next')")
    assert first["event"].startswith("no line: TypeError")
    assert second["event"] == "next"


def test_children_have_their_slot() -> None:
    """As their shards do; a child is told from its parent and from the others."""
    code = """
import billiard
child = billiard.Process(target=lambda: theirs.warning("from the child"))
child.index = 3
child.start()
child.join()
theirs.warning("from the parent")
"""
    assert [(line["process"], line["event"]) for line in log(code)] == [
        ("w-03", "from the child"),
        ("w", "from the parent"),
    ]


def test_celery_leaves_the_log_alone() -> None:
    """What it, its pool or a ``print`` has to say comes out as lines too."""
    code = """
import billiard.util
from celery import Celery
Celery("x").log.setup(loglevel="DEBUG", redirect_stdouts=True)
theirs.info("not shown")
billiard.util.error("from the %s", "pool")
print("printed\\nhere")
"""
    assert [(line["logger"], line["event"]) for line in log(code)] == [
        ("multiprocessing", "from the pool"),
        ("printed", "printed\nhere"),
    ]


def test_a_full_disk_under_the_log_stops_nothing() -> None:
    """The program goes on, and ends well."""
    program = """
from statetap_worker import log_lines
import logging, sys
log_lines.configure("warning", "w")
logging.warning("lost")
sys.exit(7)
"""
    with open("/dev/full", "wb") as full:  # noqa: PTH123  a device
        ended = subprocess.run(
            [sys.executable, "-c", program], stderr=full, timeout=60, check=False
        )
    assert ended.returncode == 7
