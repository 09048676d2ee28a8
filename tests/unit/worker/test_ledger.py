"""The ledger's lines."""

import json
from pathlib import Path

from statetap_contract import DeadLetter
from statetap_worker.ledger import Ledger


def letter(key: str) -> DeadLetter:
    return DeadLetter(key, "a-kind", "why", 6, "http://s", "2026-01-01T00:00:00+00:00")


def test_each_letter_is_a_line(tmp_path: Path) -> None:
    """The folder is made by the first one."""
    path = tmp_path / "ledger" / "w-00.jsonl"
    Ledger(path).append(letter("a"))
    Ledger(path).append(letter("b"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [DeadLetter.from_json(line) for line in lines] == [letter("a"), letter("b")]


def test_a_line_cut_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    """The next letter begins on a line of its own."""
    path = tmp_path / "w-00.jsonl"
    path.write_text('{"key": "cut')
    Ledger(path).append(letter("b"))
    cut, whole = path.read_text().splitlines()
    assert cut == '{"key": "cut'
    assert DeadLetter.from_json(json.loads(whole)) == letter("b")
