"""Rows of text: lines of JSON, one JSON array, or JSON objects that follow one another."""

import codecs
import json
import re
from typing import Any, BinaryIO, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import NumberedRows, object_of

#: Longest row. No model takes a prompt near it, and a small compressed file may hold a longer one.
MAX_ROW_BYTES: Final = 64 << 20

_CHUNK_BYTES: Final = 1 << 20
_MAX_CHUNK_BYTES: Final = 8 << 20

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()


def text_rows(stream: BinaryIO, head: bytes) -> NumberedRows:
    """Rows of a UTF-8 text, whichever of the three forms it has.

    Args:
        stream: the text from its beginning, after a byte order mark.
        head: how it begins, 1 MiB of it or all.

    Raises:
        OSError, ValueError, RecursionError: the stream cannot be read, or an array or an object
            that is not a line breaks off or is broken.
    """
    first, _, others = head.lstrip().partition(b"\n")
    if first.startswith(b"["):
        if not others.strip() or _value_end(first) != len(first.rstrip()):
            return _array_rows(stream)
    elif first.startswith(b"{") and (end := _value_end(first)) != len(first.rstrip()):
        is_spread = _value_end(head.lstrip()) > len(first) or first.strip() == b"{"
        if is_spread or (end and not others.strip()):
            return _object_rows(stream)
    return _line_rows(stream)


def _value_end(text: bytes) -> int:
    """Bytes of the value that a text begins with, 0 where there is none."""
    # In Latin-1 any bytes are text, one character each; a value's end does not depend on it.
    try:
        return _DECODER.raw_decode(text.decode("latin-1"))[1]
    except (ValueError, RecursionError):
        return 0


def _line_rows(stream: BinaryIO) -> NumberedRows:
    number = 0
    while line := stream.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_CHUNK_BYTES)
            yield number, _too_large()
        elif text := line.strip():
            yield number, text


def _array_rows(stream: BinaryIO) -> NumberedRows:
    text = _TextReader(stream)
    text.take()
    number = 0
    end = text.take() if text.next() == "]" else ","
    while end == ",":
        number += 1
        yield number, _object_or_reject(text.value())
        end = text.take()
    if end != "]":
        raise ValueError("a comma or the array's end is missing" if end else "the array breaks off")
    if text.next():
        raise ValueError("something follows the array's end")


def _object_rows(stream: BinaryIO) -> NumberedRows:
    text = _TextReader(stream)
    number = 0
    while text.next():
        number += 1
        yield number, _object_or_reject(text.value())


def _object_or_reject(value: Any) -> dict[str, Any] | RejectError:
    try:
        return object_of(value)
    except RejectError as error:
        return error


def _too_large() -> RejectError:
    return RejectError("row-too-large", f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")


class _TextReader:
    """JSON values of a stream, one after the other; holds little more than one of them."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0

    def next(self) -> str:
        """The next character that is not blank, which stays; empty at the end."""
        while True:
            if blank := _BLANK.match(self._text, self._at):
                self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._read_on():
                return ""

    def take(self) -> str:
        """The next character that is not blank; empty at the end."""
        character = self.next()
        self._at += len(character)
        return character

    def value(self) -> Any:
        """The next value. Raises ValueError where it is none or breaks off."""
        self.next()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                # Broken, or merely not read to its end yet: the decoder cannot tell.
                if self._read_on():
                    continue
                raise ValueError(f"no JSON: {error.msg}") from error
            # A number may go on.
            if end == len(self._text) and self._read_on():
                continue
            if end - self._at > MAX_ROW_BYTES:
                raise ValueError(_too_large().message)
            self._at = end
            return value

    def _read_on(self) -> bool:
        """Reads as much as is held, so that a long value is not parsed anew too often."""
        rest = self._text[self._at :]
        if len(rest) > MAX_ROW_BYTES:
            raise ValueError(_too_large().message)
        chunk = self._stream.read(min(max(len(rest), _CHUNK_BYTES), _MAX_CHUNK_BYTES))
        self._text = rest + self._decode(chunk, final=not chunk)
        self._at = 0
        return bool(chunk)
