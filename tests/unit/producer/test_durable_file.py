"""Files that are there whole or not at all."""

from pathlib import Path

import pytest
from statetap_producer.run.durable_file import durable_file


def test_a_file_takes_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """Until the body ends the old content stands; then the new, and nothing beside it."""
    path = tmp_path / "a.json"
    path.write_text("old")
    with durable_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    """When the body raises, no half-made file stays."""

    def fail() -> None:
        with durable_file(tmp_path / "a.json") as temporary:
            temporary.write_text("half")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert list(tmp_path.iterdir()) == []
