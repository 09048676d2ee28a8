"""What the system's disk errors mean to a worker."""

import errno
from pathlib import Path
from typing import Final

from statetap_contract import StopError

#: No room: on the disk, in the quota, or under the file size limit.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def stop_for(error: OSError, path: Path, task: str) -> StopError:
    """The StopError for a failed write: kind ``disk-full`` or ``shard-broken``."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StopError(
            "disk-full",
            f"no room to {task} in {path} ({reason}): free some space, then start the worker again",
        )
    return StopError(
        "shard-broken",
        f"the disk failed to {task} in {path} ({reason}): check the disk, then start the worker "
        "again, which recovers all that was committed",
    )
