"""Files of JSON lines: what is written, and what one who follows them is given."""

import json
from pathlib import Path

import pytest
from statetap_worker.durable_lines import LineTail, append_line


def test_each_record_is_a_line(tmp_path: Path) -> None:
    """The folder is made by the first one; text that is no UTF-8 does not stop it."""
    path = tmp_path / "ledger" / "w-00.jsonl"
    append_line(path, {"a": "é\n"})
    append_line(path, {"b": "\ud800"})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [{"a": "é\n"}, {"b": "\ud800"}]


def test_a_line_cut_by_a_crash_spoils_no_other(tmp_path: Path) -> None:
    """The next record begins on a line of its own, and is the one that a follower is given."""
    path = tmp_path / "w-00.jsonl"
    path.write_text('{"key": "cut')
    append_line(path, {"key": "b"})
    cut, whole = path.read_text().splitlines()
    assert (cut, json.loads(whole)) == ('{"key": "cut', {"key": "b"})
    assert LineTail(path).read_new() == [{"key": "b"}]


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    """Nothing is written anywhere else."""
    (tmp_path / "ledger").write_text("in the way")
    with pytest.raises(OSError, match="ledger"):
        append_line(tmp_path / "ledger" / "w-00.jsonl", {})


def test_a_follower_is_given_each_line_once(tmp_path: Path) -> None:
    """And not the half that is still being written."""
    path = tmp_path / "w-00.jsonl"
    append_line(path, {"n": 1})
    tail = LineTail(path)
    assert tail.read_new() == [{"n": 1}]
    with path.open("a") as stream:
        stream.write('{"n": 2}\n{"n"')
    assert tail.read_new() == [{"n": 2}]
    with path.open("a") as stream:
        stream.write(": 3}\n")
    assert tail.read_new() == [{"n": 3}]
    assert tail.read_new() == []


def test_a_follower_is_told_of_another_file(tmp_path: Path) -> None:
    """Lines that were given are there no more."""
    path = tmp_path / "w-00.jsonl"
    append_line(path, {"n": 1})
    tail = LineTail(path)
    tail.read_new()
    path.write_text("")
    assert tail.read_new() is None
