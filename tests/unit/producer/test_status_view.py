"""What status draws, writes and hands to scripts."""

import io
import json

import pytest
from rich.console import Console
from statetap_producer.queueing.announcements import AnnouncedWorker
from statetap_producer.queueing.pace import Pace, SourcePace
from statetap_producer.queueing.run_state import RunNumbers
from statetap_producer.queueing.status_view import show_watch, status_json, status_line, status_view
from statetap_producer.queueing.watch import Sighting
from statetap_producer.terminal import progress


def seen(stored: int, dead: int, *, is_seen: bool = True, num_writers: int = 2) -> Sighting:
    pending = 2000 - stored - dead
    places: tuple[int | None, int | None, int | None] = (None, None, None)
    if is_seen:
        places = (30, 2, pending - 32)
    kinds = {"mismatch": dead} if dead else {}
    servers = {"http://a:1": dead - 1, "http://b:1": 1} if dead else {}
    counts = (2000, stored, dead, pending, *places)
    sizes = (20_000, stored * 10, stored * 1000)
    numbers = RunNumbers("demo", *counts, *sizes, kinds, servers, ["w@gone:/runs"], [])
    writers = tuple(SourcePace(f"node-{n:02d}", 5, 50, 3.0, 61.0) for n in range(num_writers))
    host = SourcePace("gpu-host", 10, 100, 6.0, None)
    pace = Pace(1234.0, 5_000_000.0, None, None, 7384.0, 10**12, 3 * 86400.0, writers, (host,))
    return Sighting(numbers, pace, (AnnouncedWorker("far", "away", 7, 4, 3 * 10**9),))


def drawn(sighting: Sighting, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(status_view(sighting), highlight=False)
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_status_shows_where_prompts_are_and_who_stores_them(width: int) -> None:
    """Every number has its place, also in a narrow terminal."""
    text = " ".join(drawn(seen(1500, 3), width).split())
    for words in (
        "planned 2,000 prompts, 20,000 tokens",
        "stored 1,500 samples, 15,000 tokens, 1.5 MB",
        "dead 3 mismatch 3 at http://a:1: 2 at http://b:1: 1",
        "pending 497 (30 queued, 2 in flight, 465 missing)",
        "silent w@gone:/runs",
        "now 1,234 tokens/s, 5.0 MB/s",
        "overall rate unknown",
        "time left 2 h 3 min",
        "disk 1.0 TB free, full in 3 d",
        "announced 7 samples by far@away, heard 4 s ago, 3.0 GB free",
        "node-01 5 50 3 1 min 1 s ago",
        "gpu-host 10 100 6",
    ):
        assert words in text, words
    assert max(map(len, drawn(seen(1500, 3), width).splitlines())) <= width


def test_many_writers_are_cut() -> None:
    """A terminal has no room for hundreds."""
    text = drawn(seen(1500, 0, num_writers=40), 80)
    assert text.count("node-") == 16
    assert "and 24 more" in text


def test_without_redis_places_are_left_out() -> None:
    """What is not known is not shown as zero."""
    text = " ".join(drawn(seen(1500, 0, is_seen=False), 80).split())
    assert "pending 500 silent" in text


def test_a_watch_draws_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal it is drawn anew at each look; stdout stays clean."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    assert show_watch([seen(0, 0), seen(1500, 3)]) == seen(1500, 3)
    shown = capsys.readouterr()
    assert shown.out == ""
    for words in ("demo", "75%", "1,500 samples", "mismatch", "tokens/s", "node-01"):
        assert words in shown.err


def test_a_log_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One every so often, where stderr is no terminal; a short watch leaves none."""
    for variable in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    show_watch([seen(0, 0), seen(1500, 3)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LOG_INTERVAL_S", 0.0)
    show_watch([seen(0, 0), seen(1500, 3)])
    assert capsys.readouterr().err.splitlines() == [
        f"demo: {status_line(seen(0, 0))}",
        f"demo: {status_line(seen(1500, 3))}",
    ]


def test_a_line_says_all() -> None:
    """For a log."""
    assert status_line(seen(1500, 3)) == (
        "1,500 of 2,000 stored, 3 dead, 497 pending (30 queued, 2 in flight, 465 missing), "
        "1,234 tokens/s, 5.0 MB/s, 2 h 3 min left, disk full in 3 d"
    )


def test_json_fields_are_documented() -> None:
    """The docstring names every field of the document."""
    document = json.loads(json.dumps(status_json(seen(1500, 3))))
    words = (status_json.__doc__ or "").replace(",", " ").replace("``", " ").split()
    assert set(document) <= {word.rstrip(":") for word in words}
    assert set(document["writers"][0]) | set(document["announced"][0]) <= {
        word.rstrip(".;:") for word in words
    }
