"""Only a regular file is opened, whatever lies in its place."""

import os
from pathlib import Path

import pytest
from statetap_contract.regular_file import open_regular


def test_a_file_is_opened(tmp_path: Path) -> None:
    """Its content can be read, and no child inherits it."""
    path = tmp_path / "file"
    path.write_bytes(b"content")
    fd = open_regular(path, os.O_RDONLY)
    try:
        assert os.read(fd, 100) == b"content"
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


def test_what_is_made_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask."""
    os.close(open_regular(tmp_path / "new", os.O_CREAT | os.O_RDWR))
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_CREAT | os.O_RDWR])
def test_a_link_is_not_followed(tmp_path: Path, flags: int) -> None:
    """Neither to a file nor to a place where one could be made."""
    (tmp_path / "other").write_bytes(b"content")
    for number, target in enumerate(("other", "nowhere")):
        link = tmp_path / f"link{number}"
        link.symlink_to(tmp_path / target)
        with pytest.raises(ValueError, match=f"{link.name} is no regular file"):
            open_regular(link, flags)
    assert (tmp_path / "other").read_bytes() == b"content"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.timeout(10)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY])
def test_a_pipe_is_not_waited_for(tmp_path: Path, flags: int) -> None:
    """Opened as a file is, it would hang until somebody opens its other end."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        open_regular(tmp_path / "pipe", flags)


def test_folders_and_devices_are_none(tmp_path: Path) -> None:
    """Neither has an end of its own."""
    for path in (tmp_path, Path("/dev/zero")):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_CREAT | os.O_RDWR):
            with pytest.raises(ValueError, match="no regular file"):
                open_regular(path, flags)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    """Callers tell the two apart."""
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none", os.O_RDONLY)
