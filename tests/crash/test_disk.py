"""The disk in memory against what POSIX promises, by hand."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from .disk import PAGE_BYTES, Disk, FileImage, Image
from .real_files import differences, read_file, write_image

PAGE = PAGE_BYTES


def files_in(image: Image) -> dict[str, bytes]:
    """Content by path, folders ending in a slash."""

    def walk(folder: int, prefix: str) -> Iterable[tuple[str, bytes]]:
        for name, number in image.folders[folder].items():
            if number in image.folders:
                yield f"{prefix}{name}/", b""
                yield from walk(number, f"{prefix}{name}/")
            else:
                yield prefix + name, content_of(image.files[number])

    return dict(walk(0, ""))


def content_of(file: FileImage) -> bytes:
    content = bytearray(file.length)
    for number, page in file.pages.items():
        content[number * PAGE : number * PAGE + len(page)] = page
    assert len(content) == file.length, "a page goes on behind the end of its file"
    return bytes(content)


def all_left(disk: Disk, num_tries: int = 400) -> set[frozenset[tuple[str, bytes]]]:
    """Everything that power losses leave; with so few possibilities each of them comes up."""
    return {
        frozenset(files_in(disk.after_power_loss(random.Random(seed))).items())
        for seed in range(num_tries)
    }


def contents_left(disk: Disk, path: str) -> set[bytes | None]:
    """What power losses leave of one file, None where it is gone."""
    return {dict(left).get(path) for left in all_left(disk)}


def synced_file(disk: Disk, path: str, content: bytes) -> int:
    """A file that no power loss can harm."""
    number = disk.make_file(path)
    disk.write(number, 0, content)
    disk.sync(number)
    disk.sync(0)
    return number


def test_a_kill_takes_nothing() -> None:
    """What was written, synced or not, is there."""
    disk = Disk()
    disk.make_folder("f")
    number = disk.make_file("f/a")
    disk.write(number, 3, b"xyz")
    disk.write(number, 4, b"Y")
    disk.write(number, 100, b"")
    assert files_in(disk.image()) == {"f/": b"", "f/a": b"\0\0\0xYz"}


def test_synced_content_under_a_synced_name_stays() -> None:
    """After both syncs there is one thing that a power loss can leave."""
    disk = Disk()
    synced_file(disk, "a", b"abc")
    assert all_left(disk) == {frozenset({("a", b"abc")})}


def test_a_synced_file_without_a_synced_name_may_vanish() -> None:
    """Syncing a file says nothing of its name."""
    disk = Disk()
    number = disk.make_file("a")
    disk.write(number, 0, b"abc")
    disk.sync(number)
    assert contents_left(disk, "a") == {None, b"abc"}


def test_a_synced_name_says_nothing_of_the_content() -> None:
    """The file may be empty, short of data, or whole."""
    disk = Disk()
    number = disk.make_file("a")
    disk.sync(0)
    disk.write(number, 0, b"abc")
    assert contents_left(disk, "a") == {b"", b"\0\0\0", b"abc"}


def test_pages_survive_one_by_one() -> None:
    """Of a write over two pages either half may be lost."""
    disk = Disk()
    number = synced_file(disk, "a", b"1" * 2 * PAGE)
    disk.write(number, PAGE - 2, b"2222")
    old, new = b"1" * PAGE, b"1" * (PAGE - 2) + b"22"
    tail = b"22" + b"1" * (PAGE - 2)
    assert contents_left(disk, "a") == {old + old, new + old, old + tail, new + tail}


def test_a_page_survives_in_any_version_since_the_sync() -> None:
    """Later bytes of a page never come without the earlier ones, nor what was before the sync."""
    disk = Disk()
    number = synced_file(disk, "a", b"....")
    disk.write(number, 0, b"x")
    disk.sync(number)
    disk.write(number, 1, b"y")
    disk.write(number, 2, b"z")
    assert contents_left(disk, "a") == {b"x...", b"xy..", b"xyz."}


def test_a_length_survives_or_not() -> None:
    """A cut may be lost, and then what was cut off is there, or zero; so may a longer file."""
    disk = Disk()
    number = synced_file(disk, "a", b"abcd")
    disk.set_length(number, 2)
    assert contents_left(disk, "a") == {b"abcd", b"ab", b"ab\0\0"}
    disk.sync(number)
    disk.reserve(number, 3)
    disk.reserve(number, 1)
    assert contents_left(disk, "a") == {b"ab", b"ab\0"}


def test_what_was_cut_off_does_not_come_back_by_growing() -> None:
    """A file that is cut and grows again is zero there."""
    disk = Disk()
    number = synced_file(disk, "a", b"a" * 2 * PAGE)
    disk.set_length(number, 1)
    disk.set_length(number, 2 * PAGE)
    disk.sync(number)
    assert contents_left(disk, "a") == {b"a".ljust(2 * PAGE, b"\0")}


def test_unsynced_links_and_removals_survive_or_not() -> None:
    """Each name of a folder on its own."""
    disk = Disk()
    synced_file(disk, "a", b"1")
    disk.link("a", "b")
    disk.unlink("a")
    assert all_left(disk) == {
        frozenset({("a", b"1")}),
        frozenset({("b", b"1")}),
        frozenset({("a", b"1"), ("b", b"1")}),
        frozenset(),
    }
    disk.sync(0)
    assert all_left(disk) == {frozenset({("b", b"1")})}


def test_two_names_of_a_file_have_one_content() -> None:
    """What is written through one is read through the other, after a power loss too."""
    disk = Disk()
    number = synced_file(disk, "a", b"1")
    disk.link("a", "b")
    disk.sync(0)
    disk.write(number, 0, b"2")
    assert all_left(disk) == {
        frozenset({("a", content), ("b", content)}) for content in (b"1", b"2")
    }


def test_rename_replaces() -> None:
    """Before the folder's sync the new name may be what it was."""
    disk = Disk()
    synced_file(disk, "a", b"old")
    synced_file(disk, "b", b"new")
    disk.rename("b", "a")
    assert files_in(disk.image()) == {"a": b"new"}
    assert contents_left(disk, "a") == {b"old", b"new"}
    assert contents_left(disk, "b") == {None, b"new"}


def test_a_lost_folder_takes_its_files_along() -> None:
    """However well they were synced; the parent's sync keeps the folder."""
    disk = Disk()
    folder = disk.make_folder("f")
    number = disk.make_file("f/a")
    disk.write(number, 0, b"1")
    disk.sync(number)
    disk.sync(folder)
    assert all_left(disk) == {frozenset(), frozenset({("f/", b""), ("f/a", b"1")})}
    disk.sync(0)
    assert all_left(disk) == {frozenset({("f/", b""), ("f/a", b"1")})}


def test_a_machine_that_starts_again_has_everything_durable() -> None:
    """What a power loss left, a second one does not take."""
    disk = Disk()
    number = disk.make_file("a")
    disk.write(number, 0, b"abc")
    again = Disk.of(disk.image())
    assert all_left(again) == {frozenset({("a", b"abc")})}
    again.write(again.find("a"), 1, b"B")
    again.make_file("b")
    assert files_in(again.image()) == {"a": b"aBc", "b": b""}


def test_a_copy_goes_its_own_way() -> None:
    """Whatever happens to a copy, the disk stays as it was."""
    disk = Disk()
    number = synced_file(disk, "a", b"abc")
    copy = disk.copy()
    copy.write(number, 0, b"xyz")
    copy.unlink("a")
    copy.make_file("b")
    assert all_left(disk) == {frozenset({("a", b"abc")})}


@pytest.mark.parametrize("path", ["b", "a/b", "f/b"])
def test_missing_names(path: str) -> None:
    """A path that names nothing is an error and no file."""
    disk = Disk()
    disk.make_folder("f")
    disk.make_file("f/b")
    disk.unlink("f/b")
    with pytest.raises(KeyError):
        disk.find(path)


def test_images_become_files_and_back(tmp_path: Path) -> None:
    """Files get their bytes, holes stay holes, links stay links; each changed byte is noticed."""
    disk = Disk()
    disk.make_folder("f")
    number = disk.make_file("f/a")
    disk.write(number, 100 * PAGE + 1, b"xyz")
    disk.set_length(number, 1000 * PAGE)
    disk.link("f/a", "b")
    (tmp_path / "leftover").mkdir()
    (tmp_path / "leftover/file").touch()

    inodes = write_image(disk.image(), tmp_path)

    expected = bytes(100 * PAGE + 1) + b"xyz" + bytes(900 * PAGE - 4)
    assert {path.name for path in tmp_path.iterdir()} == {"f", "b"}
    assert (tmp_path / "b").read_bytes() == expected
    assert (tmp_path / "b").samefile(tmp_path / "f/a")
    assert (tmp_path / "b").stat().st_blocks * 512 < 100 * PAGE
    assert inodes[(tmp_path / "f/a").stat().st_ino] == number
    assert read_file(tmp_path / "b").pages == {100: b"\0xyz".ljust(PAGE, b"\0")}
    assert differences(disk.image(), tmp_path) == []
    with (tmp_path / "b").open("r+b") as file:
        file.seek(7 * PAGE)
        file.write(b"!")
    (tmp_path / "c").touch()
    assert sorted(differences(disk.image(), tmp_path)) == [
        f"{tmp_path}/b has another content",
        f"{tmp_path}/c is in one of them only",
        f"{tmp_path}/f/a has another content",
    ]
