"""What the plugin does in which SGLang."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from statetap_contract import CaptureSpec
from statetap_patch import plugin
from statetap_patch.settings import PatchSettings

SPEC = CaptureSpec("m", "r", (1,), "post", 4, "float32")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Tables of hooks that reached SGLang."""
    tables: list[object] = []
    monkeypatch.setattr(plugin, "register_hooks", tables.append)
    return tables


def start(monkeypatch: pytest.MonkeyPatch, version: str, *, is_any_version: bool = False) -> None:
    """A server of this version, started by the launcher."""
    settings = PatchSettings(Path("/x"), SPEC, (0,), keep_s=60, is_any_version=is_any_version)
    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    sglang = ModuleType("sglang")
    sglang.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", sglang)
    plugin.register()


def test_a_version_that_was_tested_is_taken(
    monkeypatch: pytest.MonkeyPatch, registered: list[object]
) -> None:
    """And one table registered."""
    start(monkeypatch, "0.5.23")
    assert len(registered) == 1


def test_a_version_that_was_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, registered: list[object]
) -> None:
    """The sentence names it, the one to install, and the way around."""
    with pytest.raises(SystemExit, match=r"0\.5\.99 .* sglang==0\.5\.23, or .* --any-sglang"):
        start(monkeypatch, "0.5.99")
    assert registered == []


def test_it_can_be_forced(monkeypatch: pytest.MonkeyPatch, registered: list[object]) -> None:
    """At the operator's own risk; hooks that do not apply still end the server."""
    start(monkeypatch, "0.5.99", is_any_version=True)
    assert len(registered) == 1


def test_another_server_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, registered: list[object]
) -> None:
    """Installed, but not started by the launcher."""
    monkeypatch.delenv("STATETAP_PATCH", raising=False)
    plugin.register()
    assert registered == []


def test_settings_that_cannot_be_read_end_the_server(
    monkeypatch: pytest.MonkeyPatch, registered: list[object]
) -> None:
    """It would serve uncaptured otherwise."""
    monkeypatch.setenv("STATETAP_PATCH", '{"dumps": 7}')
    with pytest.raises(SystemExit, match="start the server with statetap-sglang"):
        plugin.register()
    assert registered == []
