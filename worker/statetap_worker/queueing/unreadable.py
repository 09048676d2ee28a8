"""The ledger of messages that are in no run's ledger, as they do not say which sample they are."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import structlog
from statetap_contract import RejectError

from statetap_worker.durable_lines import append_line
from statetap_worker.settings import WorkerSettings

logger = structlog.get_logger(__name__)

#: Beside the runs; no run's name begins with a dot.
FOLDER: Final = ".unreadable"

_EXCERPT_CHARS: Final = 1_000
_MOST_BYTES_PER_CHAR: Final = 4


@dataclass(frozen=True, slots=True)
class UnreadableMessage:
    """A line of ``<runs>/.unreadable/<worker>.jsonl``, for a person to read."""

    #: Stable reason, and one sentence.
    kind: str
    message: str
    #: Size of the message, which is gone.
    num_bytes: int
    #: Its first characters, with U+FFFD for what is no UTF-8.
    excerpt: str
    queue: str
    #: The worker that took it.
    worker: str
    #: UTC, ISO 8601.
    time: str


def ledger_of(settings: WorkerSettings) -> Path:
    """The file of one worker, whose parent process alone writes it."""
    return settings.runs / FOLDER / f"{settings.name}.jsonl"


def set_aside(ledger: Path, item: bytes, queue: str, error: RejectError) -> None:
    """Writes a message to the ledger, named after its worker; returns when that is durable.

    Raises:
        OSError: the ledger cannot be written.
    """
    start = item[: _MOST_BYTES_PER_CHAR * _EXCERPT_CHARS].decode(errors="replace")
    record = UnreadableMessage(
        kind=error.kind,
        message=error.message[:_EXCERPT_CHARS],
        num_bytes=len(item),
        excerpt=start[:_EXCERPT_CHARS],
        queue=queue,
        worker=ledger.stem,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    append_line(ledger, asdict(record))
    logger.error(
        "unreadable message",
        kind=record.kind,
        why=record.message,
        num_bytes=record.num_bytes,
        queue=queue,
        ledger=str(ledger),
    )
