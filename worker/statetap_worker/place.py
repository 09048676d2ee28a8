"""The name of a place: one folder of runs on one disk, whoever looks at it."""

import hashlib
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

#: A leading dot: it is no run.
_FILE: Final = ".statetap-place"


def place_of(runs: Path) -> str:
    """32 hex digits, the same for all workers that share the folder, others for a copy of it.

    Raises:
        OSError: the folder cannot be written to.
    """
    file = runs / _FILE
    if not file.exists():
        own = runs / f"{_FILE}.{uuid.uuid4().hex}"
        own.write_text(own.suffix)
        # Of several workers that start together one wins, and the file is whole when it appears.
        with suppress(FileExistsError):
            file.hardlink_to(own)
        own.unlink()
    # The inode tells a copy from the original.
    seed = f"{file.read_text()} {file.stat().st_ino}"
    return hashlib.blake2b(seed.encode(), digest_size=16).hexdigest()
