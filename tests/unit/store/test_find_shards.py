"""Which shards a path means."""

from pathlib import Path

import pytest
from statetap_store.find_shards import find_shards


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_each_kind_of_path(tmp_path: Path) -> None:
    """A file means itself, a run folder what its ``shards`` holds, any other what it holds."""
    first = touch(tmp_path / "run" / "shards" / "a.h5")
    second = touch(tmp_path / "run" / "shards" / "b.h5")
    for name in (".b.h5.new", "b.h5.lock", "notes.txt"):
        touch(tmp_path / "run" / "shards" / name)
    # A merged file beside the shards it was made of would give every sample twice.
    touch(tmp_path / "run" / "all.h5")
    assert find_shards(tmp_path / "run") == [first, second]
    assert find_shards(tmp_path / "run" / "shards") == [first, second]
    assert find_shards(first) == [first]
    assert find_shards(tmp_path / "run" / "all.h5") == [tmp_path / "run" / "all.h5"]
    assert find_shards(tmp_path) == []
    assert find_shards() == []


def test_each_file_once_by_name(tmp_path: Path) -> None:
    """Named twice, in other words, through links: a file is one shard, under its first name."""
    b = touch(tmp_path / "x" / "b.h5")
    a = touch(tmp_path / "y" / "a.h5")
    c = touch(tmp_path / "y" / "c.h5")
    (tmp_path / "y" / "z.h5").symlink_to(b)
    (tmp_path / "y" / "d.h5").hardlink_to(c)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "shards").symlink_to(tmp_path / "x")
    in_other_words = tmp_path / "y" / ".." / "x" / "b.h5"
    for paths in ([b, tmp_path / "y"], [tmp_path / "y", tmp_path / "x", b, a, in_other_words]):
        assert [path.resolve() for path in find_shards(*paths)] == [a, b, c]
    assert find_shards(tmp_path / "linked", b) == [tmp_path / "linked" / "shards" / "b.h5"]


def test_same_names_in_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are two shards, in an order that neither the arguments nor their form decide."""
    for folder in ("x", "y"):
        touch(tmp_path / folder / "w0-00001.h5")
    monkeypatch.chdir(tmp_path)
    absolute, relative = tmp_path / "x", Path("y")
    expected = [absolute / "w0-00001.h5", relative / "w0-00001.h5"]
    assert find_shards(absolute, relative) == find_shards(relative, absolute) == expected


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    """What is not there is kept, once, for whoever opens it to say so."""
    nowhere = tmp_path / "no.h5"
    (tmp_path / "broken.h5").symlink_to(nowhere)
    assert find_shards(nowhere, nowhere) == [nowhere]
    assert find_shards(tmp_path) == [tmp_path / "broken.h5"]
