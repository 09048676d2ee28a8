"""A file is read only as far as it is what its header and the receipt say."""

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from statetap_contract import HEADER_BYTES, MismatchError, encode_header
from statetap_worker.proving.dump import map_dump, map_file
from statetap_worker.proving.validate import prove_dump, prove_receipt

from .conftest import JOB, SPEC, DumpBuilder

#: Of JOB: five rows of 24 bfloat16 and five ids behind the header.
_FILE_BYTES = 4096 + 5 * 48 + 5 * 4

#: The folder is the same for all examples, and each of them writes the file anew.
_ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def header_with(body: bytes) -> bytes:
    """A header of the right length around any JSON."""
    room = HEADER_BYTES - 8
    return struct.pack("<Q", room) + body.ljust(room)


@_ONE_FOLDER
@given(data=st.data())
def test_any_flipped_bit_of_the_file_is_refused(
    dumps: DumpBuilder, dump_path: Path, data: st.DataObject
) -> None:
    """Header, blanks behind it, states and ids: no bit is looked at by nobody."""
    receipt = dumps.write()
    content = bytearray(dump_path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    dump_path.write_bytes(content)
    with pytest.raises(MismatchError):
        prove_dump(map_dump(dumps.folder, receipt), receipt, JOB, SPEC)


@_ONE_FOLDER
@given(num_bytes=st.integers(0, _FILE_BYTES + 100))
def test_any_other_length_is_refused(dumps: DumpBuilder, dump_path: Path, num_bytes: int) -> None:
    """A file that was cut, or has something behind its end."""
    receipt = dumps.write()
    content = dump_path.read_bytes()
    dump_path.write_bytes((content + bytes(100))[:num_bytes])
    if num_bytes == len(content):
        map_dump(dumps.folder, receipt)
        return
    with pytest.raises(MismatchError) as caught:
        map_dump(dumps.folder, receipt)
    assert caught.value.kind == "dump-cut"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff" * 100,
        b"[" * 4000,
        b'{"__metadata__":' * 200,
        b'{"__metadata__": {"receipt": "' + b"[" * 4000 + b'"}}',
        b'{"__metadata__": {"receipt": "{}"}}',
        b'{"__metadata__": {"receipt": 5}}',
    ],
)
def test_a_header_that_is_none_is_refused(dumps: DumpBuilder, dump_path: Path, body: bytes) -> None:
    """However deep its brackets: an error that nobody foresaw would end the worker."""
    receipt = dumps.write()
    content = dump_path.read_bytes()
    dump_path.write_bytes(header_with(body) + content[HEADER_BYTES:])
    with pytest.raises(MismatchError) as caught:
        prove_dump(map_dump(dumps.folder, receipt), receipt, JOB, SPEC)
    assert caught.value.kind == "dump-unreadable"
    with pytest.raises(MismatchError) as caught:
        map_file(dump_path)
    assert caught.value.kind == "dump-unreadable"


@pytest.mark.parametrize(
    ("change", "file_bytes"),
    [
        ({"num_tokens": 0}, HEADER_BYTES),
        ({"num_tokens": -1}, HEADER_BYTES),
        ({"row_width": 0}, HEADER_BYTES + 4 * 5),
        ({"row_width": -2}, HEADER_BYTES),
        ({"num_tokens": 1 << 60}, HEADER_BYTES),
    ],
)
def test_a_header_of_no_rows_is_refused(
    dumps: DumpBuilder, dump_path: Path, change: dict[str, Any], file_bytes: int
) -> None:
    """Even where the file is just as long as such a dump would be."""
    receipt = dumps.write()
    dump_path.write_bytes(encode_header(replace(receipt, **change)).ljust(file_bytes, b"\0"))
    for told in (receipt, replace(receipt, **change)):
        with pytest.raises(MismatchError):
            map_dump(dumps.folder, told)
    with pytest.raises(MismatchError):
        map_file(dump_path)


def test_a_receipt_that_fits_no_header_is_of_no_dump(dumps: DumpBuilder) -> None:
    """The dump says itself what it is."""
    receipt = dumps.write()
    dump = map_dump(dumps.folder, receipt)
    assert dump.receipt() == receipt
    assert dump.is_of(receipt)
    assert not dump.is_of(replace(receipt, path="/" * HEADER_BYTES))


def test_the_receipt_must_be_proven_first(dumps: DumpBuilder) -> None:
    """A key that is none never becomes part of a path."""
    with pytest.raises(MismatchError, match="key"):
        prove_receipt(replace(dumps.write(), key="../../etc/passwd"), JOB, SPEC)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("what", ["link", "pipe", "folder"])
def test_what_is_no_file_is_refused(dumps: DumpBuilder, dump_path: Path, what: str) -> None:
    """Not even a link to the very dump is followed, and a pipe is not waited for."""
    receipt = dumps.write()
    dump_path.rename(dumps.folder / "elsewhere")
    if what == "link":
        dump_path.symlink_to(dumps.folder / "elsewhere")
    elif what == "pipe":
        os.mkfifo(dump_path)
    else:
        dump_path.mkdir()
    with pytest.raises(MismatchError, match="no regular file") as caught:
        map_dump(dumps.folder, receipt)
    assert caught.value.kind == "dump-unreadable"
