"""The worker's log: one line for each event, in logfmt, whoever speaks.

Celery's records, those of other libraries, warnings and tracebacks come out as our own do::

    time=2026-03-01T12:00:00.123Z level=warning process=w-00 logger=statetap_worker.work
    event="trying again" key=5f0c… kind=dump-checksum

(here in two lines). Text from outside may hold anything and cannot forge a line: a value that is no
plain word is a JSON string in ASCII.
"""

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import billiard.util
import structlog
from billiard import current_process
from celery.signals import setup_logging
from celery.utils.log import LoggingProxy

LEVELS: Final = ("debug", "info", "warning", "error")

#: Whose records are shown from the level that was asked for on.
_OURS: Final = "statetap_worker"

#: Levels of the others at ``info`` and ``warning``. Below a warning libraries have several lines a
#: sample; of a task that was put back or given up we have said so; Python's own warnings are for
#: who writes programs.
_OTHERS: Final = {None: "WARNING", "celery.app.trace": "ERROR", "py.warnings": "ERROR"}

#: Values that need no quotes.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.,:/@+-]+")

#: Characters of a value, of which a longer one loses its middle: some quote whole messages.
_MOST_CHARS: Final = 8_000

_STANDARD_ERROR: Final = 2


def configure(level: str, worker: str) -> None:
    """Sets up all logging of this process and of the children that it will fork.

    Args:
        level: one of ``LEVELS``.
        worker: its name; each line names the process, as files do.
    """
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _LineHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.processors.format_exc_info, _Line(worker)]
        )
    )
    logging.getLogger().handlers = [handler]
    logging.getLogger(_OURS).setLevel(level.upper())
    for name, least in _OTHERS.items():
        logging.getLogger(name).setLevel(level.upper() if level in ("debug", "error") else least)
    logging.captureWarnings(capture=True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread
    # Celery sets logging up by itself, unless somebody listens to this.
    setup_logging.connect(_take_over_from_celery, weak=False)


def logfmt(fields: Mapping[str, object]) -> str:
    """One line of ``name=value`` pairs, in ASCII, without its end.

    Names are ours; values may be anything that has a ``str``, None is left out.
    """
    return " ".join(
        f"{name}={_quoted(value)}" for name, value in fields.items() if value is not None
    )


def _quoted(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    if len(text) > _MOST_CHARS:
        half = _MOST_CHARS // 2
        text = f"{text[:half]} ... {len(text) - 2 * half} characters ... {text[-half:]}"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class _Line:
    """The last processor: makes a line of an event, or of a record of somebody else's."""

    def __init__(self, worker: str) -> None:
        self._worker = worker

    def __call__(self, _logger: object, _method: str, event: Mapping[str, Any]) -> str:
        fields = dict(event)
        record: logging.LogRecord = fields.pop("_record")
        del fields["_from_structlog"]
        # Only children of the pool have a slot.
        slot = getattr(current_process(), "index", None)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return logfmt(
            {
                "time": time.replace("+00:00", "Z"),
                "level": record.levelname.lower(),
                "process": self._worker if slot is None else f"{self._worker}-{slot:02d}",
                "logger": record.name,
                "event": fields.pop("event"),
            }
            | fields
        )


class _LineHandler(logging.Handler):
    """Writes each line by one system call.

    So lines of several processes do not mix, and a signal's handler may log while its process does.
    """

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # noqa: BLE001  a log must not end what it tells of
            line = logfmt({"level": "error", "logger": record.name, "event": f"no line: {error!r}"})
        # A full disk under the log is no reason to stop.
        with suppress(OSError):
            os.write(_STANDARD_ERROR, f"{line}\n".encode())


def _take_over_from_celery(**_: Any) -> None:
    """Lets nothing past the log that Celery, its pool or a ``print`` has to say."""
    pool_logger = billiard.util.get_logger()
    pool_logger.propagate = True
    pool_logger.setLevel(logging.ERROR)
    # Celery's signal handlers write to the descriptor of the original one, which this has not.
    printed = LoggingProxy(logging.getLogger("printed"), logging.WARNING)
    sys.__stdout__ = sys.stdout = sys.stderr = printed  # type: ignore[misc]


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    logging.getLogger(_OURS).critical("uncaught", exc_info=(kind, error, traceback))


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        _log_uncaught(args.exc_type, args.exc_value, args.exc_traceback)
