"""Rows of one file, whose format is told by its content and not by its name."""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, cast

import pyarrow as pa
from statetap_contract import UsageError

from statetap_producer.reading.arrow_rows import arrow_file_rows, arrow_stream_rows, parquet_rows
from statetap_producer.reading.data_file import DataFile
from statetap_producer.reading.json_rows import text_rows
from statetap_producer.reading.row_values import NumberedRows

#: As much of a file as is looked at to tell its format.
_HEAD_BYTES: Final = 1 << 20

_CODECS: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_PARQUET: Final = b"PAR1"
_ARROW_FILE: Final = b"ARROW1"
_ARROW_STREAM: Final = b"\xff\xff\xff\xff"

#: Formats that no empty file has; one with such a name was cut.
_NEVER_EMPTY: Final = (".parquet", ".arrow", ".gz", ".zst")

#: How a JSON text begins in UTF-16, with its mark or without.
_UTF_16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"{\0", b"\0{", b"[\0", b"\0[")

#: What reading a damaged file may raise.
DAMAGE: Final = (OSError, ValueError, OverflowError, MemoryError, RecursionError, pa.ArrowException)


class FileRows:
    """Reads one file from beginning to end, a row at a time."""

    def __init__(self, file: DataFile) -> None:
        self._file = file
        #: Where in the file the reader is, in bytes; of a Parquet file, about where.
        self.num_bytes_read = 0

    def __iter__(self) -> NumberedRows:
        """The rows.

        Raises:
            UsageError: kinds ``dataset-utf16``, ``dataset-format``, ``columns-unknown``.
            One of ``DAMAGE``: the file cannot be read to its end.
        """
        file = self._file
        with file.open() as plain:
            codec = _codec_of(plain)
        with _decompressed(file, codec) as (_, stream):
            head = _head_of(stream)
        if head.startswith(_UTF_16):
            raise UsageError("dataset-utf16", f"{file.path} is UTF-16; save it as UTF-8")
        if codec and head.startswith((_PARQUET, _ARROW_FILE)):
            raise UsageError(
                "dataset-format",
                f"{file.path} is a Parquet or Arrow file inside {codec}, which cannot be read "
                "from its end; decompress it first",
            )
        if not file.num_bytes and file.name.lower().endswith(_NEVER_EMPTY):
            raise ValueError("the file is empty")
        with _decompressed(file, codec) as (source, stream):
            for row in _rows_of(stream, head, file.path):
                self.num_bytes_read = source.raw.tell()
                yield row


def _rows_of(stream: BinaryIO, head: bytes, path: Path) -> NumberedRows:
    if head.startswith(_PARQUET):
        return parquet_rows(stream, path)
    if head.startswith(_ARROW_FILE):
        return arrow_file_rows(stream, path)
    if head.startswith(_ARROW_STREAM):
        return arrow_stream_rows(stream, path)
    if head.startswith(codecs.BOM_UTF8):
        stream.read(len(codecs.BOM_UTF8))
    return text_rows(stream, head.removeprefix(codecs.BOM_UTF8))


def _codec_of(stream: BinaryIO) -> str | None:
    beginning = stream.read(4)
    return next((codec for magic, codec in _CODECS.items() if beginning.startswith(magic)), None)


@contextmanager
def _decompressed(
    file: DataFile, codec: str | None
) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    """The file as it lies on the disk, and its content."""
    with file.open() as source:
        if codec is None:
            yield source, source
            return
        with pa.CompressedInputStream(source, codec) as content:
            yield source, io.BufferedReader(cast(io.RawIOBase, content), 1 << 16)


def _head_of(stream: io.BufferedReader) -> bytes:
    """As much as can be read: what is damaged is found by the one who reads on."""
    head = bytearray()
    with suppress(OSError):
        while len(head) < _HEAD_BYTES and (piece := stream.read1(_HEAD_BYTES - len(head))):
            head += piece
    return bytes(head)
