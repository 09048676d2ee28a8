"""Whatever lies in a dataset: a known error or rows, in bounded time and memory."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from statetap_contract import RejectError, StatetapError
from statetap_producer.reading.conversation import KNOWN_FIELDS, parse_row
from statetap_producer.reading.dataset import Dataset

INPUTS = Path(__file__).parent / "data" / "inputs"
FILES = sorted(path for path in INPUTS.rglob("*") if path.is_file())

BEGINNINGS = (
    b"",
    b"\x1f\x8b\x08\0",
    b"\x28\xb5\x2f\xfd",
    b"PAR1",
    b"ARROW1\0\0",
    b"\xff\xff\xff\xff",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"[",
    b"{\n",
    b'[{"messages": [',
    b'{"messages": [{"role": "user"',
    b'[{"role": "user", "content": "Hi"}',
)

#: What JSON text is made of, so that nearly valid files come up often.
PIECES = (b"{", b"}", b"[", b"]", b",", b":", b"\n", b'"', b'"text"', b'"\\ud800"', b"1e999", b"-1")

fuzz = settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read(path: Path) -> int:
    """Reads and parses all of it; returns the number of rows before an error or the end."""
    num_rows = 0
    sentences = []
    try:
        dataset = Dataset.open(path)
        dataset.digest()
        for row in dataset.rows():
            num_rows += 1
            try:
                parse_row(row.raw)
            except RejectError as error:
                sentences.append(error.message)
    except StatetapError as error:
        sentences.append(error.message)
        assert str(path) in sentences[-1]
    assert not any("\n" in sentence for sentence in sentences)
    return num_rows


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Bytes that look like JSON to some depth."""
    return b"".join(draw(st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=40)))


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A file of the table after a few accidents."""
    content = bytearray(draw(st.sampled_from(FILES)).read_bytes())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(("flip", "insert", "remove", "cut", "repeat"))):
            case "flip" if at < len(content):
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "insert":
                content[at:at] = draw(st.binary(min_size=1, max_size=8))
            case "remove":
                del content[at : at + draw(st.integers(1, 16))]
            case "cut":
                del content[at:]
            case _:
                content += content[:at]
    return bytes(content)


@pytest.mark.timeout(300)
@fuzz
@given(beginning=st.sampled_from(BEGINNINGS), rest=st.binary(max_size=200) | texts())
def test_any_bytes_are_rows_or_a_known_error(tmp_path: Path, beginning: bytes, rest: bytes) -> None:
    """Whatever a file holds, only the program's own errors come out, in one sentence."""
    path = tmp_path / "any"
    path.write_bytes(beginning + rest)
    assert read(path) <= len(beginning + rest)


@pytest.mark.timeout(300)
@fuzz
@given(content=mutations())
def test_a_damaged_file_is_rows_or_a_known_error(tmp_path: Path, content: bytes) -> None:
    """The same for files of every format that were flipped, cut, and spliced."""
    path = tmp_path / "damaged"
    path.write_bytes(content)
    read(path)


@pytest.mark.timeout(300)
@fuzz
@given(content=texts(), codec=st.sampled_from(("gzip", "zstd")))
def test_compressed_texts_are_read_as_plain_ones(
    tmp_path: Path, content: bytes, codec: str
) -> None:
    """A compression changes nothing about the rows."""
    assume(not content.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"ARROW1")))
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    plain.write_bytes(content)
    packed.write_bytes(
        gzip.compress(content)
        if codec == "gzip"
        else pa.compress(content, codec="zstd", asbytes=True)
    )
    assert read(plain) == read(packed)


TURN_FIELDS = (
    *("role", "from", "content", "value", "type", "text", "function", "name", "arguments"),
    *("tool_calls", "tool_call_id", "id", "reasoning", "function_call", "refusal", "weight"),
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
    | st.sampled_from(("user", "gpt", "[]", "{}", '[{"role": "user"}]', "text", "function")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(TURN_FIELDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.timeout(300)
@settings(max_examples=500, deadline=None)
@given(row=st.dictionaries(st.sampled_from(sorted(KNOWN_FIELDS)), json_values, max_size=5))
def test_any_fields_are_content_or_a_rejection(row: dict[str, Any]) -> None:
    """A row of any values is taken or rejected, alike when it comes decoded and as a line."""
    outcomes = []
    for raw in (row, json.dumps(row).encode()):
        try:
            outcomes.append(repr(parse_row(raw)))
        except RejectError as error:
            outcomes.append(error.kind)
    assert outcomes[0] == outcomes[1]


#: Prints the rows, and by how much memory grew beyond its high mark before, in MiB.
READER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_dataset_fuzz import read
def peak():  # ru_maxrss would begin with the parent's
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
before = peak()
num_rows = read(Path(sys.argv[1]))
print(num_rows, (peak() - before) >> 10)
"""

MIB = 1 << 20


def rows_and_growth(path: Path) -> tuple[int, int]:
    """What ``READER`` prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", READER, path, Path(__file__).parent],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    rows_read, grown_mib = map(int, done.stdout.split())
    return rows_read, grown_mib


@pytest.mark.parametrize(
    ("name", "pieces", "num_rows"),
    [
        ("zeros", (b"\0" * MIB,) * 400, 1),
        ("one line", (b'{"text": "', *(b"x" * MIB,) * 400, b'"}\n'), 1),
        ("one element", (b'[{"text": "', *(b"x" * MIB,) * 400, b'"}]'), 0),
        ("open brackets", (b"[" * MIB,) * 400, 0),
        ("blank lines", (b"\n" * MIB,) * 10, 0),
        ("long lines", (b'{"text": "' + b"x" * MIB + b'"}\n',) * 400, 400),
    ],
)
@pytest.mark.timeout(300)
def test_a_small_file_that_unfolds_to_much_takes_little_memory(
    tmp_path: Path, name: str, pieces: tuple[bytes, ...], num_rows: int
) -> None:
    """Of up to 400 MiB behind a compression a few times the largest row is held, no more."""
    path = tmp_path / f"{name}.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for piece in pieces:
            stream.write(piece)
    rows_read, grown_mib = rows_and_growth(path)
    assert rows_read == num_rows
    assert grown_mib < 200


@pytest.mark.timeout(300)
def test_a_dictionary_that_unfolds_takes_little_memory(tmp_path: Path) -> None:
    """1,000 rows that share one value of 1 MiB: a Parquet file of a few kB."""
    table = pa.table({"text": pa.array(["x" * MIB]).take(pa.array([0] * 1000))})
    pq.write_table(table, tmp_path / "one.parquet", compression="zstd", row_group_size=500)
    rows_read, grown_mib = rows_and_growth(tmp_path / "one.parquet")
    assert rows_read == 1000
    assert grown_mib < 350
