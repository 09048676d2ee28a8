"""Rows of Parquet and Arrow files, as JSON has them: what is null is absent, a map is an object.

Columns that no row shape knows are not read. Where ``datasets`` or a database has stored values as
JSON, they are decoded.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from statetap_contract import RejectError, UsageError

from statetap_producer.reading.conversation import KNOWN_FIELDS
from statetap_producer.reading.row_values import NumberedRows

#: Rows that are decoded at a time.
_BATCH_ROWS: Final = 64

#: How an Arrow stream ends. One that was cut between two batches lacks it and reads well.
_END_OF_STREAM: Final = b"\xff\xff\xff\xff\0\0\0\0"

_Converter = Callable[[Any], Any]


def parquet_rows(stream: BinaryIO, path: Path) -> NumberedRows:
    """Rows of a Parquet file.

    Args:
        stream: the file, which can be read from anywhere.
        path: what it is called in sentences.

    Raises:
        OSError, ValueError, ArrowException: the file is damaged.
        UsageError: kind ``columns-unknown``.
    """
    with pq.ParquetFile(stream, page_checksum_verification=True) as file:
        columns = _known(file.schema_arrow, path)
        # Group by group, so that the sound ones before a damaged one are read.
        batches = (
            batch
            for group in range(file.num_row_groups)
            for batch in file.iter_batches(
                _BATCH_ROWS, row_groups=[group], columns=columns, use_threads=False
            )
        )
        yield from _numbered(batches, columns)


def arrow_file_rows(stream: BinaryIO, path: Path) -> NumberedRows:
    """Rows of an Arrow IPC file; arguments and errors as of ``parquet_rows``."""
    with pa.ipc.open_file(stream) as reader:
        batches = map(reader.get_batch, range(reader.num_record_batches))
        yield from _numbered(map(_validated, batches), _known(reader.schema, path))


def arrow_stream_rows(stream: BinaryIO, path: Path) -> NumberedRows:
    """Rows of an Arrow IPC stream, which is read forwards only; else as of ``parquet_rows``."""
    ending = _Ending(stream)
    with pa.ipc.open_stream(ending) as reader:
        yield from _numbered(map(_validated, reader), _known(reader.schema, path))
        if ending.last_bytes != _END_OF_STREAM:
            raise ValueError("the stream breaks off")


class _Ending:
    """A stream to read from, and the last bytes that were read."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.last_bytes = b""

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self.last_bytes = (self.last_bytes + content[-len(_END_OF_STREAM) :])[
            -len(_END_OF_STREAM) :
        ]
        return content

    def close(self) -> None:
        """The stream is its owner's to close."""


def _known(schema: Any, path: Path) -> list[str]:
    columns = [name for name in schema.names if name in KNOWN_FIELDS]
    if len(set(columns)) < len(columns):
        raise ValueError(f"of the columns {', '.join(columns)} two have the same name")
    if not columns:
        raise UsageError(
            "columns-unknown",
            f"{path} has the columns {', '.join(map(repr, schema.names)):.200} and none of "
            f"{', '.join(sorted(KNOWN_FIELDS))}; rename those that hold the conversations",
        )
    return columns


def _validated(batch: Any) -> Any:
    """An IPC file's bytes become arrays as they are; offsets that lead astray would end us."""
    batch.validate(full=True)
    return batch


def _numbered(batches: Iterator[Any], columns: list[str]) -> NumberedRows:
    number = 0
    for batch in batches:
        known = batch.select(columns)
        converters = {field.name: _converter(field.type) for field in known.schema}
        for start in range(0, batch.num_rows, _BATCH_ROWS):
            num_rows = min(_BATCH_ROWS, batch.num_rows - start)
            for row in _rows_of(known.slice(start, num_rows), num_rows, converters):
                number += 1
                yield number, row


def _rows_of(
    batch: Any, num_rows: int, converters: dict[str, _Converter | None]
) -> Iterator[dict[str, Any] | RejectError]:
    try:
        rows = [_plain(row, converters) for row in batch.to_pylist()]
    except (ValueError, LookupError, OverflowError, RecursionError) as error:
        if num_rows == 1:
            yield RejectError(
                "row-unreadable", f"a value of the row cannot be read: {error!s:.100}"
            )
            return
        for index in range(num_rows):
            yield from _rows_of(batch.slice(index, 1), 1, converters)
        return
    yield from rows


def _plain(row: dict[str, Any], converters: dict[str, _Converter | None]) -> dict[str, Any]:
    plain = {}
    for name, value in row.items():
        if value is not None:
            convert = converters[name]
            plain[name] = convert(value) if convert else value
    return plain


def _converter(kind: Any) -> _Converter | None:
    """What makes plain JSON of a value that is not null; None where it is that already."""
    if isinstance(kind, pa.JsonType):
        return json.loads
    if pa.types.is_struct(kind):
        converters = {field.name: _converter(field.type) for field in kind}
        return lambda fields: _plain(fields, converters)
    if pa.types.is_map(kind):
        return _map_converter(_converter(kind.item_type))
    if pa.types.is_dictionary(kind):
        return _converter(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list_converter(_converter(kind.value_type))
    return None


def _map_converter(convert: _Converter | None) -> _Converter:
    def as_object(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        fields = {
            _key(key): value if convert is None or value is None else convert(value)
            for key, value in pairs
        }
        if len(fields) < len(pairs):
            raise ValueError("a map has one of its keys twice")
        return fields

    return as_object


def _key(key: object) -> str:
    """A map's key as JSON writes it."""
    if isinstance(key, str):
        return key
    if type(key) is int:
        return str(key)
    raise ValueError("a map has keys that are neither text nor whole numbers")


def _list_converter(convert: _Converter | None) -> _Converter | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]
