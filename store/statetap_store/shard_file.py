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
    #: The file's length before the header was read: a seal, which cuts the file, writes the header
    #: of the shorter one first. So a shard that is sealed meanwhile does not look cut short.
    num_bytes: int
    #: Whether it was opened for writing.
    is_writable: bool

    @classmethod
    def open(cls, path: Path, flags: int = os.O_RDONLY) -> Self:
        """Opens a shard.

        Raises:
            MissingError: kind ``shard-missing`` or ``shard-unreachable``.
            CheckError: kinds of ``ShardHeader.decode``; ``shard-truncated`` when the file ends in
                its header or the copies; ``shard-unreadable`` when the disk gives neither the
                header nor a copy of it.
        """
        fd = _open_regular(path, flags)
        try:
            num_bytes = os.fstat(fd).st_size
            copies = read_copies(fd)
            _check_not_cut(path, num_bytes, copies)
            is_writable = flags & os.O_ACCMODE != os.O_RDONLY
            return cls(path, fd, copies, _decoded(path, copies), num_bytes, is_writable)
        except OSError as error:
            os.close(fd)
            raise unreadable(path, error) from error
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def open_whole(cls, path: Path) -> Self:
        """Opens a shard for reading and makes sure that none of it is missing.

        Raises:
            MissingError, CheckError: as ``open`` and ``check_length``.
        """
        shard = cls.open(path)
        try:
            shard.check_length()
        except BaseException:
            shard.close()
            raise
        return shard

    def load_index(self) -> ShardIndex:
        """All rows of the index, as far as the disk gives them.

        Raises:
            CheckError: kind ``shard-unreadable``: it gives none. If the shard is open for writing,
                also when it does not give one of the rows that may have to be recovered: unlike
                what a crash left, that one may hold a sample that was acknowledged.
        """
        try:
            index = load_index(self.fd, self.header.layout, is_sealed=self.header.is_sealed)
        except OSError as error:
            raise unreadable(self.path, error) from error
        late = [sequence for sequence in index.unreadable if sequence >= index.num_durable]
        if late and self.is_writable:
            raise CheckError(
                "shard-unreadable",
                f"cannot read index row {late[0]} of {self.path}: check the disk it is on, or run "
                f"'statetap repair {self.path}' to give it up",
            )
        return index

    @property
    def has_slack(self) -> bool:
        """Whether the file goes on behind its last dataset, as before a seal is finished."""
        return os.fstat(self.fd).st_size > self.header.layout.file_bytes

    def check_length(self) -> None:
        """Raises CheckError, kind ``shard-truncated``, when the file ends too early."""
        expected = self.header.layout.file_bytes
        if self.num_bytes < expected:
            raise _truncated(self.path, self.num_bytes, expected)

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


def _decoded(path: Path, copies: HeaderCopies) -> ShardHeader:
    """The header; if it is of no use and copies cannot be read, the disk is to blame."""
    try:
        return ShardHeader.decode(copies.best, path)
    except CheckError:
        if copies.proven is None and copies.disk_error is not None:
            raise copies.disk_error from None
        raise


def _check_not_cut(path: Path, found: int, copies: HeaderCopies) -> None:
    """Raises CheckError, kind ``shard-truncated``, for a file that ends before the first sample.

    HDF5 itself says in its first bytes how long the file is. What stands there is asked only
    here: missing bytes read as zero, and a header of which a part is zero may well look like that
    of some other HDF5 file.
    """
    if copies.proven is None and _SUPERBLOCK.size <= found < BACKUP_OFFSET + BACKUP_BYTES:
        signature, version, expected = _SUPERBLOCK.unpack_from(copies.on_disk)
        if signature == HDF5_SIGNATURE and version in _VERSIONS and found < expected:
            raise _truncated(path, found, expected)


def _truncated(path: Path, found: int, expected: int) -> CheckError:
    return CheckError(
        "shard-truncated",
        f"{path} has {found} bytes of {expected}: it was cut short; copy it again, or run "
        f"'statetap repair {path}'",
    )


def unreadable(path: Path, error: OSError) -> CheckError:
    """The error for a shard that the disk does not give."""
    return CheckError(
        "shard-unreadable", f"cannot read {path} ({error.strerror}): check the disk it is on"
    )
