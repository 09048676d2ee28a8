"""What the system's disk errors mean to a worker."""

import errno
from pathlib import Path
from typing import Final

from statetap_contract import StopError

#: No room: on the disk, in the quota, or under the file size limit.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: The disk works, but not for this process.
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


def stop_for(error: OSError, path: Path, task: str) -> StopError:
    """The StopError for a failed write: ``disk-full``, ``not-writable`` or ``shard-broken``."""
    reason = error.strerror or str(error)
    if error.errno in NO_ROOM:
        return StopError(
            "disk-full", f"no room to {task} in {path} ({reason}): free some space, then try again"
        )
    if error.errno in _FORBIDDEN:
        return StopError(
            "not-writable",
            f"not allowed to {task} in {path} ({reason}): make its folder writable, then try again",
        )
    return StopError(
        "shard-broken",
        f"the disk failed to {task} in {path} ({reason}): check the disk, then try again, which "
        "recovers all that was committed",
    )
