"""The key reaches SGLang by no command line, and no line of a log shows it."""

import io
import logging
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
from statetap_patch.server_key import hand_over, hide_in_log, warn_if_forgeable


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a logger writes while the key ``s3cret`` is hidden."""
    make = logging.getLogRecordFactory()
    hide_in_log("s3cret")
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("of a test")
    monkeypatch.setattr(logger, "propagate", False)
    logger.addHandler(handler)
    yield output
    logger.removeHandler(handler)
    logging.setLogRecordFactory(make)


class Arguments:
    """As SGLang logs its own."""

    def __repr__(self) -> str:
        return "ServerArgs(api_key='s3cret', port=1)"


def test_the_key_is_blotted_out(lines: io.StringIO) -> None:
    """In the text of a line, and in whatever is put into it."""
    logger = logging.getLogger("of a test")
    logger.warning("server_args={'api_key': 's3cret', 'share': '5%'}")
    logger.warning("args: %s", Arguments())
    logger.warning("%d requests, %s", 3, "none secret")
    assert lines.getvalue().splitlines() == [
        "server_args={'api_key': '<key>', 'share': '5%'}",
        "args: ServerArgs(api_key='<key>', port=1)",
        "3 requests, none secret",
    ]


def test_a_traceback_does_not_show_it(lines: io.StringIO) -> None:
    """Whose last line quotes what was wrong."""
    try:
        raise ValueError("ServerArgs(api_key='s3cret') cannot be served")
    except ValueError:
        logging.getLogger("of a test").exception("it failed")
    first, *_, last = lines.getvalue().splitlines()
    assert first == "it failed"
    assert last == "ValueError: ServerArgs(api_key='<key>') cannot be served"


def test_a_line_that_cannot_be_formatted_ends_nobody(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logging would report it and go on; so it does here."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logging.getLogger("of a test").warning("%d", "no number")
    assert lines.getvalue() == ""


@pytest.mark.parametrize(
    ("path", "is_said"),
    [("/generate", False), ("/health", True)],  # as Starlette 1.10 has it, and 1.0
)
def test_a_key_that_can_be_evaded_is_noticed(
    path: str,
    is_said: bool,  # noqa: FBT001  a column of the table
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Starlette is there beside SGLang alone; on a real server see ``test_api_key.py``."""
    starlette = ModuleType("starlette.datastructures")
    monkeypatch.setattr(
        starlette, "URL", lambda scope: SimpleNamespace(path=scope and path), raising=False
    )
    monkeypatch.setitem(sys.modules, "starlette", ModuleType("starlette"))
    monkeypatch.setitem(sys.modules, "starlette.datastructures", starlette)
    warn_if_forgeable()
    assert ("keeps out nobody" in capsys.readouterr().err) == is_said


def test_the_key_becomes_an_argument_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After those of the command line."""
    monkeypatch.setattr(sys, "argv", ["serve.py", "--port=1"])
    hand_over("s3cret")
    assert sys.argv == ["serve.py", "--port=1", "--api-key=s3cret"]
