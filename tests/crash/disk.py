"""A disk in memory that knows what a kill and what a power loss can leave of it.

POSIX promises little. After a power loss each page of a file may be there in any version that it
had since the file was last synced, independently of all other pages; so may the file's length;
and so may each name in a folder, since the folder was last synced. Syncing a file says nothing of
its names, and syncing a folder nothing of its files.
"""

import random
from dataclasses import dataclass, field
from typing import Final, Protocol, Self, TypeVar

_Version = TypeVar("_Version")

PAGE_BYTES: Final = 4096

#: The number of the folder that everything is in.
ROOT: Final = 0

_ZEROS: Final = bytes(PAGE_BYTES)


@dataclass(slots=True)
class _File:
    """Everything in the versions it had since the last sync, the durable one first."""

    lengths: tuple[int, ...] = (0,)
    #: Pages that were ever written; all others are zero.
    pages: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    def copy(self) -> "_File":
        return _File(self.lengths, dict(self.pages))

    def set_page(self, number: int, page: bytes) -> None:
        versions = self.pages.get(number, (_ZEROS,))
        if page != versions[-1]:
            versions = (*versions, page)
        self.pages[number] = versions

    def set_length(self, length: int) -> None:
        if length < self.lengths[-1]:
            for number, versions in list(self.pages.items()):
                kept = versions[-1][: max(0, length - number * PAGE_BYTES)]
                self.set_page(number, kept.ljust(PAGE_BYTES, b"\0"))
        if length != self.lengths[-1]:
            self.lengths = (*self.lengths, length)


#: The names in a folder: a file's or folder's number, None for no such name, in the versions since
#: the last sync, the durable one first.
_Names = dict[str, tuple[int | None, ...]]


@dataclass(frozen=True, slots=True)
class FileImage:
    """A file's content; pages that are not here are zero."""

    length: int
    #: Cut at the file's length.
    pages: dict[int, bytes]

    def without_zeros(self) -> "FileImage":
        """The same content, with the fewest pages."""
        return FileImage(self.length, {n: page for n, page in self.pages.items() if any(page)})


@dataclass(frozen=True, slots=True)
class Image:
    """What is on a disk at one moment; all of it can be reached from the root."""

    folders: dict[int, dict[str, int]]
    files: dict[int, FileImage]


class Disk:
    """Files and folders, by number. A new disk has an empty root, which is durable."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._folders: dict[int, _Names] = {ROOT: {}}
        self._next_number = ROOT + 1

    @classmethod
    def of(cls, image: Image) -> Self:
        """The disk of a machine that starts again: everything on it is durable."""
        disk = cls()
        disk._files = {
            number: _File(
                (file.length,),
                {page: (data.ljust(PAGE_BYTES, b"\0"),) for page, data in file.pages.items()},
            )
            for number, file in image.files.items()
        }
        disk._folders = {
            number: {name: (entry,) for name, entry in names.items()}
            for number, names in image.folders.items()
        }
        disk._next_number = 1 + max((*disk._files, *disk._folders))
        return disk

    def copy(self) -> "Disk":
        """A disk of its own, with the same future."""
        disk = Disk()
        disk._files = {number: file.copy() for number, file in self._files.items()}
        disk._folders = {number: dict(names) for number, names in self._folders.items()}
        disk._next_number = self._next_number
        return disk

    def find(self, path: str) -> int:
        """The number of what a path below the root names now; "" is the root.

        Raises:
            KeyError: there is nothing of that name.
        """
        number = ROOT
        for name in filter(None, path.split("/")):
            entry = self._folders[number][name][-1]
            if entry is None:
                raise KeyError(path)
            number = entry
        return number

    def make_file(self, path: str) -> int:
        """Gives a new, empty file a name; returns its number."""
        number = self._new_number()
        self._files[number] = _File()
        self._set_name(path, number)
        return number

    def make_folder(self, path: str) -> int:
        """Gives a new, empty folder a name; returns its number."""
        number = self._new_number()
        self._folders[number] = {}
        self._set_name(path, number)
        return number

    def link(self, path: str, new_path: str) -> None:
        self._set_name(new_path, self.find(path))

    def unlink(self, path: str) -> None:
        self.find(path)
        self._set_name(path, None)

    def rename(self, path: str, new_path: str) -> None:
        self._set_name(new_path, self.find(path))
        self._set_name(path, None)

    def write(self, number: int, offset: int, data: bytes) -> None:
        file = self._files[number]
        end = offset + len(data)
        # A write of nothing does not even lengthen the file.
        if data and end > file.lengths[-1]:
            file.set_length(end)
        for page_number in range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)):
            page_start = page_number * PAGE_BYTES
            page = bytearray(file.pages.get(page_number, (_ZEROS,))[-1])
            start, stop = max(offset, page_start), min(end, page_start + PAGE_BYTES)
            page[start - page_start : stop - page_start] = data[start - offset : stop - offset]
            file.set_page(page_number, bytes(page))

    def set_length(self, number: int, length: int) -> None:
        self._files[number].set_length(length)

    def reserve(self, number: int, length: int) -> None:
        """Makes a file at least this long."""
        file = self._files[number]
        file.set_length(max(length, file.lengths[-1]))

    def sync(self, number: int) -> None:
        """Makes a file's pages and length durable, or a folder's names."""
        if number in self._folders:
            names = self._folders[number]
            self._folders[number] = {name: versions[-1:] for name, versions in names.items()}
        else:
            file = self._files[number]
            file.lengths = file.lengths[-1:]
            file.pages = {page: versions[-1:] for page, versions in file.pages.items()}

    def image(self) -> Image:
        """What the running system sees, and what it would see after any kill."""

        def newest(versions: tuple[_Version, ...]) -> _Version:
            return versions[-1]

        return self._image(newest, newest)

    def after_power_loss(self, generator: random.Random) -> Image:
        """One of the many things that a power loss now may leave."""
        return self._image(_survivor(generator), _survivor(generator))

    def _image(self, name_version: "_Choice", content_version: "_Choice") -> Image:
        """Everything that can be reached through the names that are there."""
        image = Image({}, {})
        found = [ROOT]
        while found:
            number = found.pop()
            if number in self._files:
                image.files[number] = _file_image(self._files[number], content_version)
            elif number not in image.folders:
                chosen = {
                    name: name_version(versions) for name, versions in self._folders[number].items()
                }
                names = {name: entry for name, entry in chosen.items() if entry is not None}
                image.folders[number] = names
                found += [entry for entry in names.values() if entry not in image.files]
        return image

    def _new_number(self) -> int:
        self._next_number += 1
        return self._next_number - 1

    def _set_name(self, path: str, entry: int | None) -> None:
        parent, _, name = path.rpartition("/")
        names = self._folders[self.find(parent)]
        names[name] = (*names.get(name, (None,)), entry)


class _Choice(Protocol):
    """Picks one of the versions that something had since it was last synced."""

    def __call__(self, versions: tuple[_Version, ...], /) -> _Version: ...


def _survivor(generator: random.Random) -> _Choice:
    """Picks the durable version or, with a chance drawn once, any later one."""
    chance = generator.choice((0.1, 0.5, 0.9))

    def choose(versions: tuple[_Version, ...], /) -> _Version:
        if len(versions) == 1 or generator.random() >= chance:
            return versions[0]
        return generator.choice(versions[1:])

    return choose


def _file_image(file: _File, choose: _Choice) -> FileImage:
    length = choose(file.lengths)
    pages = {
        number: choose(versions)[: length - number * PAGE_BYTES]
        for number, versions in file.pages.items()
        if number * PAGE_BYTES < length
    }
    return FileImage(length, pages)
