"""A child must not outlive its parent: it could tell nobody what became of its prompt."""

import ctypes
import os
import signal
from typing import Final

#: From ``linux/prctl.h``.
_PR_SET_PDEATHSIG: Final = 1


def die_with(parent_pid: int) -> None:
    """Has the kernel kill this process when its parent ends.

    What it had in hand is left as by any kill. Were it to finish, its successor under the same name
    would have to wait for it, and its acknowledgement would go nowhere.

    Raises:
        OSError: the kernel refuses.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before that.
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)
