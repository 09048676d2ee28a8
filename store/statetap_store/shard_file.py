"""An open shard: its descriptor, its header, and where the header came from."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from statetap_contract import CheckError, MissingError

from statetap_store.header import ShardHeader
from statetap_store.header_copies import HeaderCopies, read_copies
from statetap_store.shard_index import ShardIndex, load_index


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
            CheckError: kinds of ``ShardHeader.decode``; ``shard-unreadable`` for a bad disk too.
        """
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingError("shard-missing", f"there is no shard {path}: check the path") from (
                error
            )
        except OSError as error:
            raise MissingError(
                "shard-unreachable", f"cannot open {path} ({error.strerror}): check its permissions"
            ) from error
        try:
            copies = read_copies(fd)
            return cls(path, fd, copies, ShardHeader.decode(copies.best, path))
        except IsADirectoryError as error:
            os.close(fd)
            raise MissingError("shard-missing", f"{path} is a folder, not a shard") from error
        except OSError as error:
            os.close(fd)
            raise _unreadable(path, error) from error
        except BaseException:
            os.close(fd)
            raise

    def load_index(self) -> ShardIndex:
        """All rows of the index. Raises CheckError, kind ``shard-unreadable``: a bad disk."""
        try:
            return load_index(self.fd, self.header.layout)
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
            raise CheckError(
                "shard-truncated",
                f"{self.path} has {found} bytes of {expected}: it was cut short, copy it again",
            )

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unreadable(path: Path, error: OSError) -> CheckError:
    return CheckError(
        "shard-unreadable", f"cannot read {path} ({error.strerror}): check the disk it is on"
    )
