"""Which of Celery's remote commands a worker obeys: those by which Flower looks at it.

The others change what only the command line may change, such as the number of processes, or
acknowledge messages whose samples are nowhere, as ``revoke`` does. Anyone who reaches Redis can
send them.
"""

import functools
from typing import Any, Final

import structlog
from celery.worker.control import Panel

logger = structlog.get_logger(__name__)

OBEYED: Final = frozenset(
    {
        "active",
        "active_queues",
        "clock",
        "conf",
        "enable_events",
        "heartbeat",
        "ping",
        "query_task",
        "registered",
        "report",
        "reserved",
        "revoked",
        "scheduled",
        "stats",
    }
)


def obey_only_inspection() -> None:
    """Has this process refuse all other commands."""
    for name in Panel.data:
        if name not in OBEYED:
            Panel.data[name] = functools.partial(_refuse, name)


def _refuse(command: str, _state: object, **_: Any) -> dict[str, str]:
    logger.warning("remote command refused", command=command)
    return {"error": f"a statetap worker does not obey {command}; SIGTERM stops it"}
