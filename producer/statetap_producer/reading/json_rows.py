"""Rows of text: lines of JSON, one JSON array, or JSON objects that follow one another."""

import codecs
import io
import json
import re
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import NumberedRows, is_turn, object_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

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
    """Rows of an array; one row if it is a list of turns, behind which lines may follow."""
    text = _TextReader(stream)
    text.take()
    turns: list[Any] = []
    values = text.elements()
    for value in values:
        if text.num_characters > MAX_ROW_BYTES or not is_turn(value):
            # Not a list of turns alone, so what was taken for them are rows.
            others = chain(turns, (value,), values)
            yield from enumerate(map(_object_or_reject, others), 1)
            turns = []
            break
        turns.append(value)
    lines = _line_rows(text.rest())
    after = next(lines, None)
    # With its first line longer than what is looked at, a file of lists of turns comes here too.
    if after and (after[0] == 1 or not turns):
        raise ValueError("something follows the array's end")
    if turns:
        yield 1, {"messages": turns}
    if after:
        yield after
        yield from lines


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
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        #: Characters that were read, those of values not asked for yet included.
        self.num_characters = 0
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

    def elements(self) -> Iterator[Any]:
        """The values of an array up to its end, which is taken too. Raises ValueError."""
        end = self.take() if self.next() == "]" else ","
        while end == ",":
            yield self.value()
            end = self.take()
        if end != "]":
            raise ValueError(
                "a comma or the array's end is missing" if end else "the array breaks off"
            )

    def rest(self) -> BinaryIO:
        """What has not been taken, as a stream."""
        undecoded, _ = self._decoder.getstate()
        return io.BufferedReader(_Joined(self._text[self._at :].encode() + undecoded, self._stream))

    def _read_on(self) -> bool:
        """Reads as much as is held, so that a long value is not parsed anew too often."""
        rest = self._text[self._at :]
        if len(rest) > MAX_ROW_BYTES:
            raise ValueError(_too_large().message)
        chunk = self._stream.read(min(max(len(rest), _CHUNK_BYTES), _MAX_CHUNK_BYTES))
        piece = self._decoder.decode(chunk, final=not chunk)
        self.num_characters += len(piece)
        self._text = rest + piece
        self._at = 0
        return bool(chunk)


class _Joined(io.RawIOBase):
    """Bytes, and the stream that they were read from behind them."""

    def __init__(self, begun: bytes, stream: BinaryIO) -> None:
        self._begun = io.BytesIO(begun)
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer") -> int:
        room = memoryview(buffer)
        piece = self._begun.read(len(room)) or self._stream.read(len(room))
        room[: len(piece)] = piece
        return len(piece)
