"""ChecksumList: which files of an export are finished, and what is in them."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Self

from statetap_contract import StopError, UsageError

CHECKSUMS_FILE: Final = "checksums.xxh128"

_DIGEST_DIGITS: Final = 32
_DIGEST_FORM: Final = re.compile(rb"[0-9a-f]{32}")


class ChecksumList:
    """``checksums.xxh128``: a line for each file that is whole and durable, in the export's order.

    ``xxhsum --check`` understands it. While it is open no other process exports into its folder.

    Args:
        path: the file; it is made if there is none.

    Raises:
        UsageError: kind ``export-running``: another process has it.
        StopError: kind ``no-locks``: there are no locks where it lies.
        OSError: it cannot be made or opened.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        self._stream = os.fdopen(fd, "r+b")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._stream.close()
            raise UsageError(
                "export-running",
                f"another process is exporting into {path.parent}: wait for it, or give another "
                "folder to --out",
            ) from error
        except OSError as error:
            self._stream.close()
            raise StopError(
                "no-locks",
                f"{path.parent} lies on a file system that has no locks ({error.strerror}), and "
                "two exports could mix there: give another folder to --out",
            ) from error

    def recorded(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Names and digests of the first of some files, as far as they are recorded.

        What comes after the last right line, a power loss may leave such, is cut off.

        Args:
            names: of all files of the export, in its order.
        """
        self._stream.seek(0)
        num_bytes = 0
        for name in names:
            line = self._stream.readline()
            digest, rest = line[:_DIGEST_DIGITS], line[_DIGEST_DIGITS:]
            if not _DIGEST_FORM.fullmatch(digest) or rest != f"  {name}\n".encode():
                break
            num_bytes += len(line)
            yield name, digest.decode()
        self._stream.seek(num_bytes)
        self._stream.truncate()

    def append(self, files: Iterable[tuple[str, str]]) -> None:
        """Records names and digests of files that are durable, durably. Raises OSError."""
        self._stream.writelines(_line(name, digest) for name, digest in files)
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def correct(self, digests: Mapping[str, str]) -> None:
        """Puts right the digests of files, by name, that came out otherwise. Raises OSError.

        In place, since this very file is locked. A digest that a crash leaves half-written fits no
        file, which is then written anew.
        """
        self._stream.seek(0)
        offset = 0
        for line in self._stream:
            name = line[_DIGEST_DIGITS + 2 : -1].decode()
            if name in digests:
                os.pwrite(self._stream.fileno(), digests[name].encode(), offset)
            offset += len(line)
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(name: str, digest: str) -> bytes:
    return f"{digest}  {name}\n".encode()
