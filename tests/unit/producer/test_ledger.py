"""Dead letters, as workers leave them."""

import json
from pathlib import Path

import pytest
from statetap_contract import DeadLetter, StatetapError
from statetap_producer.ledger import read_ledger

SERVER = "http://127.0.0.1:30000"
TIME = "2026-01-01T00:00:00Z"


def line(key: str, kind: str = "too-long-for-server", attempts: int = 1) -> str:
    return json.dumps(
        {
            "key": key,
            "kind": kind,
            "message": "why",
            "attempts": attempts,
            "server": SERVER,
            "time": TIME,
        }
    )


def test_letters_of_all_workers_are_read(tmp_path: Path) -> None:
    """Every worker process has a file; the last letter for a sample counts."""
    (tmp_path / "a.jsonl").write_text(line("k1") + "\n" + line("k1", "mismatch", 6) + "\n")
    (tmp_path / "b.jsonl").write_text(line("k2") + "\n")
    (tmp_path / "notes.txt").write_text("not a ledger")
    assert read_ledger(tmp_path) == {
        "k1": DeadLetter("k1", "mismatch", "why", 6, SERVER, TIME),
        "k2": DeadLetter("k2", "too-long-for-server", "why", 1, SERVER, TIME),
    }


def test_a_run_without_a_ledger_has_no_dead_letters(tmp_path: Path) -> None:
    """The folder appears with the first dead letter."""
    assert read_ledger(tmp_path / "absent") == {}


def test_a_line_cut_by_a_crash_is_no_letter(tmp_path: Path) -> None:
    """What a crash cut short spoils no other line, in the middle or at the end."""
    cut = line("k2")[:-9]
    (tmp_path / "a.jsonl").write_text(f"{line('k1')}\n{cut}\n{line('k3')}\n{cut}")
    assert read_ledger(tmp_path).keys() == {"k1", "k3"}


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"key": 1}', line("k1").replace('"attempts": 1', '"attempts": "1"')]
)
def test_a_whole_line_that_is_no_letter_is_named(tmp_path: Path, content: str) -> None:
    """JSON that no worker writes is reported by file and line."""
    (tmp_path / "a.jsonl").write_text(line("k0") + "\n" + content + "\n")
    with pytest.raises(StatetapError, match=r"a\.jsonl:2 cannot be read") as caught:
        read_ledger(tmp_path)
    assert caught.value.kind == "ledger-damaged"
