"""Gives back the space of dumps that nobody came for."""

import logging
import threading
from pathlib import Path
from typing import Final, NoReturn

from statetap_patch.space import expire

logger = logging.getLogger(__name__)

#: Looks at the folder this often while a dump may be kept.
_LOOKS: Final = 10


def start_housekeeping(folder: Path, keep_s: int) -> None:
    """Starts the thread that expires published dumps. Once per server."""
    threading.Thread(
        target=_run, args=(folder, keep_s), name="statetap-housekeeping", daemon=True
    ).start()


def _run(folder: Path, keep_s: int) -> NoReturn:
    pause = threading.Event()  # never set: a daemon thread ends with its process
    while True:
        pause.wait(keep_s / _LOOKS)
        try:
            if num_removed := expire(folder, keep_s):
                logger.warning(
                    "%d dumps that nobody fetched for %d s were removed", num_removed, keep_s
                )
        except OSError:
            logger.exception("cannot look for old dumps in %s", folder)
