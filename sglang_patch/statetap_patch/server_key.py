"""The server's API key on its way to SGLang: by no command line, and into no log."""

import logging
import sys
from contextlib import suppress
from typing import Any, Final

_SHOWN: Final = "<key>"


def hand_over(key: str) -> None:
    """Gives SGLang the key as an argument; ``ps`` shows those that the process began with."""
    sys.argv.append(f"--api-key={key}")


def warn_if_forgeable() -> None:
    """Says so where SGLang can be made to take any request for one that needs no key.

    It decides by the path of the request's address, which Starlette puts together. One that takes
    in whatever the client wrote as ``Host`` finds the path of an open door there.
    """
    from starlette.datastructures import URL  # noqa: PLC0415  there only beside SGLang

    scope = {
        "type": "http",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "path": "/generate",
        "query_string": b"",
        "headers": [(b"host", b"x/health?")],
    }
    if URL(scope=scope).path != "/generate":
        print(  # noqa: T201  a warning of the command's
            "statetap-sglang: the API key keeps out nobody who writes 'Host: x/health?', for which "
            "the Starlette beside SGLang is too old; install 1.10, or let nobody reach the server",
            file=sys.stderr,
        )


def hide_in_log(key: str) -> None:
    """Keeps the key out of this process's log, into which SGLang writes all of its arguments."""
    make, plain = logging.getLogRecordFactory(), logging.Formatter()

    def make_without_key(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        # A line that cannot be formatted is left to logging, which says so.
        with suppress(Exception):
            if key in (text := record.getMessage()):
                record.msg, record.args = text.replace(key, _SHOWN), ()
        with suppress(Exception):
            if record.exc_info and key in (text := plain.formatException(record.exc_info)):
                record.exc_text = text.replace(key, _SHOWN)  # formatters take it where it is set
        return record

    logging.setLogRecordFactory(make_without_key)
