"""Folders whose names a power loss cannot take."""

import os
from pathlib import Path

import pytest
from statetap_store.file_bytes import make_folders


def synced_by_making(folder: Path, num_levels: int, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were synced, in order."""
    synced: list[Path] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        make_folders(folder, num_levels)
    return synced


def test_names_are_synced_whoever_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder above each one, also where all are there: their maker may have been killed."""
    folder = tmp_path / "run" / "shards"
    for _ in range(2):
        assert synced_by_making(folder, 2, monkeypatch) == [tmp_path, tmp_path / "run"]
        assert folder.is_dir()
    assert synced_by_making(folder, 1, monkeypatch) == [tmp_path / "run"]


def test_only_so_many_levels_are_made(tmp_path: Path) -> None:
    """What is missing above them is not made up."""
    with pytest.raises(FileNotFoundError):
        make_folders(tmp_path / "runs" / "run" / "shards", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "shards").touch()
    with pytest.raises(FileExistsError):
        make_folders(tmp_path / "shards", 1)
