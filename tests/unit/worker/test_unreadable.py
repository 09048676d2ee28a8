"""The ledger of unreadable messages."""

import json
from pathlib import Path

from statetap_contract import RUN_NAME_FORM, RejectError
from statetap_worker.queueing.unreadable import FOLDER, set_aside


def test_a_message_becomes_one_line(tmp_path: Path) -> None:
    """With its size and its beginning, whatever bytes it has."""
    ledger = tmp_path / FOLDER / "w.jsonl"
    item = b'\xff"\n' + "ü".encode() * 3_000
    set_aside(ledger, item, "a-queue", RejectError("a-kind", "why \ud800" + 5_000 * "x"))
    (line,) = ledger.read_text().splitlines()
    record = json.loads(line)
    assert record.pop("time")
    assert record.pop("message").startswith("why ")
    assert record == {
        "kind": "a-kind",
        "num_bytes": 6_003,
        "excerpt": '\ufffd"\n' + 997 * "ü",
        "queue": "a-queue",
        "worker": "w",
    }
    assert len(line) < 10_000


def test_its_folder_is_no_run() -> None:
    """Announcer and producer take each folder with the name of a run for one."""
    assert not RUN_NAME_FORM.fullmatch(FOLDER)
