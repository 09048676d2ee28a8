"""Images of a disk as files below a folder, and back."""

import errno
import os
import shutil
from pathlib import Path

from .disk import PAGE_BYTES, ROOT, FileImage, Image


def write_image(image: Image, root: Path) -> dict[int, int]:
    """Makes the files below ``root``, which is emptied first; sparse, and linked as they were.

    Returns:
        The image's number of each inode, as ``Replay`` wants them.
    """
    for entry in root.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    inodes = {root.stat().st_ino: ROOT}
    first_paths: dict[int, Path] = {}
    found = [(ROOT, root)]
    while found:
        folder, folder_path = found.pop()
        for name, number in image.folders[folder].items():
            path = folder_path / name
            if number in image.folders:
                path.mkdir()
                found.append((number, path))
            elif number in first_paths:
                os.link(first_paths[number], path)
            else:
                first_paths[number] = path
                _write_file(image.files[number], path)
            inodes[path.stat().st_ino] = number
    return inodes


def _write_file(image: FileImage, path: Path) -> None:
    with path.open("xb") as file:
        for number, page in image.pages.items():
            os.pwrite(file.fileno(), page, number * PAGE_BYTES)
        os.ftruncate(file.fileno(), image.length)


def read_file(path: Path) -> FileImage:
    """A file's length and all its pages that are not zero. Holes are not read, for they are."""
    pages: dict[int, bytes] = {}
    with path.open("rb", buffering=0) as file:
        length = os.fstat(file.fileno()).st_size
        position = 0
        while position < length:
            try:
                start = os.lseek(file.fileno(), position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break
                raise
            position = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            start -= start % PAGE_BYTES
            data = os.pread(file.fileno(), position - start, start)
            for offset in range(0, len(data), PAGE_BYTES):
                page = data[offset : offset + PAGE_BYTES]
                if any(page):
                    pages[(start + offset) // PAGE_BYTES] = page
    return FileImage(length, pages)


def differences(image: Image, root: Path) -> list[str]:
    """How the files below ``root`` differ from an image, a line each; every byte is compared."""
    return _differences(image, ROOT, root)


def _differences(image: Image, folder: int, folder_path: Path) -> list[str]:
    names = image.folders[folder]
    real = {path.name for path in folder_path.iterdir()}
    found = [f"{folder_path / name} is in one of them only" for name in real ^ names.keys()]
    for name in real & names.keys():
        path, number = folder_path / name, names[name]
        if number in image.folders and path.is_dir():
            found += _differences(image, number, path)
        elif number not in image.files or not path.is_file():
            found.append(f"{path} is a folder in one of them")
        elif image.files[number].without_zeros() != read_file(path):
            found.append(f"{path} has another content")
    return found
