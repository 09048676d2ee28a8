"""An open shard: its descriptor, its header, and where the header came from."""

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract import CheckError, MissingError

from statetap_store.header import HDF5_SIGNATURE, ShardHeader
from statetap_store.header_copies import HeaderCopies, read_copies
from statetap_store.layout import BACKUP_BYTES, BACKUP_OFFSET
from statetap_store.shard_index import ShardIndex, load_index

#: How an HDF5 file starts: signature, version of what follows, and from byte 28 on its length;
#: so it is in these versions.
_SUPERBLOCK: Final = struct.Struct("<8sB19xQ")
_VERSIONS: Final = (2, 3)


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard opened for reading or writing. Everything goes through ``fd``, nothing is cached.

    The header is taken from its proven copy, so a torn header on disk hinders nobody.
    """

    path: Path
    fd: int
    copies: HeaderCopies
    header: ShardHeader

    @classmethod
    def open(cls, path: Path, flags: int = os.O_RDONLY) -> Self:
        """Opens a shard.

        Raises:
            MissingError: kind ``shard-missing`` or ``shard-unreachable``.
            CheckError: kinds of ``ShardHeader.decode``; ``shard-truncated`` when the file ends in
                its header or the copies; ``shard-unreadable`` for a bad disk too.
        """
        fd = _open_regular(path, flags)
        try:
            copies = read_copies(fd)
            _check_not_cut(path, fd, copies)
            header = ShardHeader.decode(copies.best, path)
            if os.fstat(fd).st_size < header.layout.file_bytes:
                # Perhaps it was sealed, and thereby cut, after its header was read.
                copies = read_copies(fd)
                header = ShardHeader.decode(copies.best, path)
            return cls(path, fd, copies, header)
        except OSError as error:
            os.close(fd)
            raise _unreadable(path, error) from error
        except BaseException:
            os.close(fd)
            raise

    def load_index(self) -> ShardIndex:
        """All rows of the index. Raises CheckError, kind ``shard-unreadable``: a bad disk."""
        try:
            return load_index(self.fd, self.header.layout, is_sealed=self.header.is_sealed)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    @property
    def has_slack(self) -> bool:
        """Whether the file goes on behind its last dataset, as before a seal is finished."""
        return os.fstat(self.fd).st_size > self.header.layout.file_bytes

    def check_length(self) -> None:
        """Raises CheckError, kind ``shard-truncated``, when the file ends too early."""
        expected, found = self.header.layout.file_bytes, os.fstat(self.fd).st_size
        if found < expected:
            raise _truncated(self.path, found, expected)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_regular(path: Path, flags: int) -> int:
    """A descriptor of a file. Raises MissingError as ``ShardFile.open``."""
    try:
        # Without O_NONBLOCK, a named pipe is waited at until someone opens its other end.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("shard-missing", f"there is no shard {path}: check the path") from error
    except OSError as error:
        raise MissingError(
            "shard-unreachable",
            f"cannot open {path} ({error.strerror}): check the path and its permissions",
        ) from error
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a folder" if stat.S_ISDIR(mode) else "a device or a pipe"
        raise MissingError("shard-missing", f"{path} is {what}, not a shard: check the path")
    return fd


def _check_not_cut(path: Path, fd: int, copies: HeaderCopies) -> None:
    """Raises CheckError, kind ``shard-truncated``, for a file that ends before the first sample.

    HDF5 itself says in its first bytes how long the file is. What stands there is asked only
    here: missing bytes read as zero, and a header of which a part is zero may well look like that
    of some other HDF5 file.
    """
    found = os.fstat(fd).st_size
    if copies.proven is None and found < BACKUP_OFFSET + BACKUP_BYTES:
        superblock = copies.on_disk[: _SUPERBLOCK.size].ljust(_SUPERBLOCK.size, b"\0")
        signature, version, expected = _SUPERBLOCK.unpack(superblock)
        if signature == HDF5_SIGNATURE and version in _VERSIONS and found < expected:
            raise _truncated(path, found, expected)


def _truncated(path: Path, found: int, expected: int) -> CheckError:
    return CheckError(
        "shard-truncated",
        f"{path} has {found} bytes of {expected}: it was cut short, copy it again",
    )


def _unreadable(path: Path, error: OSError) -> CheckError:
    return CheckError(
        "shard-unreadable", f"cannot read {path} ({error.strerror}): check the disk it is on"
    )
