"""The dead-letter ledger: samples given up on, as JSON lines that survive a power loss."""

from datetime import UTC, datetime

import structlog
from statetap_contract import DeadLetter, StatetapError

from statetap_worker.durable_lines import append_line
from statetap_worker.settings import WorkerSettings

logger = structlog.get_logger(__name__)


def bury(
    settings: WorkerSettings,
    owner: str,
    run: str,
    key: str,
    error: StatetapError,
    attempts: int,
) -> None:
    """Writes a sample to the run's ledger.

    Args:
        settings: where runs lie, and which server was asked.
        owner: the process that writes, which no other may be named like.
        run: name of the run.
        key: sample key.
        error: why it is given up.
        attempts: times the sample was tried.

    Raises:
        OSError: the ledger cannot be written.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    letter = DeadLetter(key, error.kind, error.message, attempts, settings.server_url, now)
    append_line(settings.runs / run / "ledger" / f"{owner}.jsonl", letter.to_json())
    logger.error(
        "dead letter", key=key, run=run, kind=error.kind, why=error.message, attempts=attempts
    )
