"""Dead letters, as workers leave them."""

import json
from pathlib import Path

import pytest
from statetap_contract import DeadLetter, StatetapError
from statetap_producer.run.ledger import LedgerReader

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


def letter(key: str, kind: str = "too-long-for-server", attempts: int = 1) -> DeadLetter:
    return DeadLetter(key, kind, "why", attempts, SERVER, TIME)


def read(folder: Path) -> dict[str, list[DeadLetter]]:
    reader = LedgerReader(folder)
    reader.refresh()
    return reader.letters


def test_letters_of_all_workers_are_read(tmp_path: Path) -> None:
    """Every worker process has a file; a sample may have several letters."""
    (tmp_path / "a.jsonl").write_text(line("k1") + "\n" + line("k1", "mismatch", 6) + "\n")
    (tmp_path / "b.jsonl").write_text(line("k2") + "\n")
    (tmp_path / "notes.txt").write_text("not a ledger")
    assert read(tmp_path) == {
        "k1": [letter("k1"), letter("k1", "mismatch", 6)],
        "k2": [letter("k2")],
    }


def test_a_run_without_a_ledger_has_no_dead_letters(tmp_path: Path) -> None:
    """The folder appears with the first dead letter."""
    assert read(tmp_path / "absent") == {}


def test_a_ledger_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is new is seen; a file that did not change is not read again."""
    (tmp_path / "a.jsonl").write_text(line("k1") + "\n")
    (tmp_path / "b.jsonl").write_text(line("k2") + "\n")
    reader = LedgerReader(tmp_path)
    reader.refresh()
    files_read: list[str] = []
    real = Path.read_bytes

    def counting(path: Path) -> bytes:
        files_read.append(path.name)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", counting)
    reader.refresh()
    assert files_read == []
    with (tmp_path / "b.jsonl").open("a") as stream:
        stream.write(line("k1", "mismatch") + "\n")
    (tmp_path / "c.jsonl").write_text(line("k3") + "\n")
    reader.refresh()
    assert files_read == ["b.jsonl", "c.jsonl"]
    expected = {
        "k1": [letter("k1"), letter("k1", "mismatch")],
        "k2": [letter("k2")],
        "k3": [letter("k3")],
    }
    assert reader.letters == expected
    (tmp_path / "a.jsonl").unlink()
    reader.refresh()
    assert reader.letters == expected | {"k1": [letter("k1", "mismatch")]}


def test_a_line_cut_by_a_crash_is_no_letter(tmp_path: Path) -> None:
    """What a crash cut short spoils no other line, in the middle or at the end."""
    cut = line("k2")[:-9]
    (tmp_path / "a.jsonl").write_text(f"{line('k1')}\n{cut}\n{line('k3')}\n{cut}")
    assert read(tmp_path).keys() == {"k1", "k3"}


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"key": 1}', line("k1").replace('"attempts": 1', '"attempts": "1"')]
)
def test_a_whole_line_that_is_no_letter_is_named(tmp_path: Path, content: str) -> None:
    """JSON that no worker writes is reported by file and line."""
    (tmp_path / "a.jsonl").write_text(line("k0") + "\n" + content + "\n")
    with pytest.raises(StatetapError, match=r"a\.jsonl:2 cannot be read") as caught:
        read(tmp_path)
    assert caught.value.kind == "ledger-damaged"
