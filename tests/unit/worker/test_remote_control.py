"""Remote commands that a worker obeys."""

import pytest
from celery.worker.control import Panel
from flower.inspector import Inspector  # type: ignore[import-untyped]
from statetap_worker.queueing.remote_control import OBEYED, obey_only_inspection


@pytest.fixture(autouse=True)
def _panel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of this process stay as they are."""
    monkeypatch.setattr(Panel, "data", dict(Panel.data))


def test_what_flower_asks_is_obeyed() -> None:
    """Every question of its inspector, and each command that is obeyed is one of Celery's."""
    assert {*Inspector.inspect_methods, "enable_events"} <= OBEYED <= Panel.data.keys()


def test_all_else_is_refused() -> None:
    """By name, with a word on how to stop a worker."""
    before = dict(Panel.data)
    obey_only_inspection()
    kept = {name for name, command in Panel.data.items() if command is before[name]}
    assert kept == OBEYED
    assert {"shutdown", "revoke", "hello", "pool_grow"} <= Panel.data.keys() - kept
    answer = Panel.data["shutdown"](None, msg="now")
    assert answer == {"error": "a statetap worker does not obey shutdown; SIGTERM stops it"}
