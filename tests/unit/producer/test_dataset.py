"""A dataset as a whole: its files, its digest, its rows in order, and what changes under it."""

import gzip
import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from statetap_contract import CheckError, MissingError
from statetap_producer.reading.dataset import Dataset, RawRow

LINE = b'{"text": "Hi"}\n'


def test_rows_are_lines_with_their_numbers(tmp_path: Path) -> None:
    """A line comes as its bytes, unparsed, under the number that an editor shows."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{1}\r\n\r\n  \n{2}\n\n{3}")
    rows = [(row.file, row.line, row.raw) for row in Dataset.open(path).rows()]
    assert rows == [("odd.jsonl", 1, b"{1}"), ("odd.jsonl", 4, b"{2}"), ("odd.jsonl", 6, b"{3}")]


def test_the_digest_is_that_of_all_bytes(tmp_path: Path) -> None:
    """A file's digest is over its bytes, whatever the file is called."""
    content = b"\xef\xbb\xbf{1}\r\n\n{2}"
    expected = hashlib.blake2b(content, digest_size=16).hexdigest()
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / name).write_bytes(content)
        assert Dataset.open(tmp_path / name).digest() == expected


def test_the_digest_of_a_folder_tells_its_files_apart(tmp_path: Path) -> None:
    """What is moved from one file to another, or to another name, is another dataset."""

    def digest_of(**files: bytes) -> str:
        folder = tmp_path / "-".join(files)
        for name, content in files.items():
            folder.mkdir(exist_ok=True)
            (folder / f"{name}.jsonl").write_bytes(content)
        return Dataset.open(folder).digest()

    digests = [
        digest_of(a=LINE, b=LINE * 2),
        digest_of(a=LINE * 2, b=LINE),
        digest_of(a=LINE, c=LINE * 2),
        digest_of(a=LINE * 3),
    ]
    assert len(set(digests)) == len(digests)
    assert digest_of(a=LINE, b=LINE * 2) == digests[0]


@pytest.mark.parametrize("given", ["data", "data/", "data/."])
def test_a_dataset_is_called_as_its_file_or_folder(tmp_path: Path, given: str) -> None:
    """The name is the last part of the path, however it is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_bytes(LINE)
    assert Dataset.open(f"{tmp_path}/{given}").name == "data"
    assert Dataset.open(tmp_path / "data" / "a.jsonl").name == "a.jsonl"


def test_here_has_a_name_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset given as the working folder is called like it."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    monkeypatch.chdir(tmp_path)
    assert Dataset.open(".").name == tmp_path.name


def test_progress_goes_over_all_files(tmp_path: Path) -> None:
    """The bytes read never shrink, and are all bytes in the end."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(LINE * 20_000)
    pq.write_table(pa.table({"text": ["Hi"] * 1000}), tmp_path / "last.parquet")
    dataset = Dataset.open(tmp_path)
    assert dataset.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    seen = [dataset.num_bytes_read for _ in dataset.rows()]
    assert seen == sorted(seen)
    assert len(set(seen)) > 10
    assert seen[-1] <= dataset.num_bytes == dataset.num_bytes_read


def test_rows_are_the_same_a_second_time(tmp_path: Path) -> None:
    """A dataset can be read more than once."""
    (tmp_path / "a.jsonl").write_bytes(LINE * 3)
    dataset = Dataset.open(tmp_path)
    assert list(dataset.rows()) == list(dataset.rows())
    assert dataset.num_bytes_read == dataset.num_bytes


def as_json_array(rows: list[dict[str, str]], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False))


def as_pretty_array(rows: list[dict[str, str]], path: Path) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=2))


def as_objects(rows: list[dict[str, str]], path: Path) -> None:
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False, indent=1) for row in rows))


def as_parquet(rows: list[dict[str, str]], path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=700)


def as_stream(rows: list[dict[str, str]], path: Path) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=700)


@pytest.mark.parametrize(
    "write", [as_json_array, as_pretty_array, as_objects, as_parquet, as_stream]
)
def test_many_rows_come_whole_and_in_order(
    tmp_path: Path, write: Callable[[list[dict[str, str]], Path], None]
) -> None:
    """Rows of all lengths, across every buffer and batch, are those that were written."""
    seeded = random.Random(5)
    rows = [
        {"id": str(number), "text": "".join(seeded.choices('aé€😀"\\\n', k=seeded.randint(1, 900)))}
        for number in range(3000)
    ]
    write(rows, tmp_path / "many")
    read = list(Dataset.open(tmp_path / "many").rows())
    assert read == [RawRow("many", number, row) for number, row in enumerate(rows, 1)]


def test_lists_of_turns_are_lines_whatever_the_length_of_the_first(tmp_path: Path) -> None:
    """A first line that no look ahead reaches the end of is a row as the others are."""
    first = [{"role": "user", "content": "aé€😀" * 400_000}, {"role": "assistant", "content": "Hi"}]
    line = json.dumps(first, ensure_ascii=False).encode()
    path = tmp_path / "lists.jsonl"
    path.write_bytes(line + b"\n\n" + line + b"\n{broken}\n" + LINE)
    rows = [(row.line, row.raw) for row in Dataset.open(path).rows()]
    assert rows == [(1, {"messages": first}), (3, line), (4, b"{broken}"), (5, LINE.strip())]


def test_a_long_array_of_rows_ends_its_file(tmp_path: Path) -> None:
    """What stands behind an array of rows belongs to no dataset, on whichever line."""
    path = tmp_path / "array.json"
    path.write_bytes(json.dumps([{"text": "x" * (2 << 20)}]).encode() + b"\n" + LINE)
    with pytest.raises(CheckError, match="beyond row 1: something follows the array's end"):
        list(Dataset.open(path).rows())


def test_a_run_within_its_dataset_changes_nothing(tmp_path: Path) -> None:
    """Rows and digest are the same before and after a run was made inside the folder."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    before = Dataset.open(tmp_path)
    digest, rows = before.digest(), list(before.rows())
    run = tmp_path / "run1"
    run.mkdir()
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), run / "plan.parquet")
    (run / "run.json").write_text("{}")
    (run / "left-out.jsonl").write_text('{"line": 1}\n')
    after = Dataset.open(tmp_path)
    assert (after.digest(), list(after.rows())) == (digest, rows)


def test_only_columns_that_count_are_read(tmp_path: Path) -> None:
    """Damage in a column that no row shape has does no harm, and in another one it does."""
    path = tmp_path / "wide.parquet"
    table = pa.table({"text": ["Hello there"] * 3, "embedding": ["0123456789"] * 3})
    pq.write_table(
        table,
        path,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0123456789", b"012345678X", 1))
    assert [row.raw for row in Dataset.open(path).rows()] == [{"text": "Hello there"}] * 3
    path.write_bytes(whole.replace(b"Hello there", b"Hello THERE", 1))
    with pytest.raises(CheckError, match="cannot be read"):
        list(Dataset.open(path).rows())


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    """Which of them counts nobody knows."""
    table = pa.table([["a"], ["b"]], names=["text", "text"])
    with pa.ipc.new_stream(tmp_path / "twice.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CheckError, match="two have the same name"):
        list(Dataset.open(tmp_path / "twice.arrow").rows())


def test_what_can_be_read_of_a_cut_file_comes_first(tmp_path: Path) -> None:
    """A gzip file that was cut gives its rows up to the cut; the error names the last one."""
    seeded = random.Random(7)
    lines = b"".join(
        b'{"text": "%s"}\n' % seeded.randbytes(200).hex().encode() for _ in range(2000)
    )
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-5000])
    rows: list[int] = []
    with pytest.raises(CheckError) as caught:
        rows.extend(row.line for row in Dataset.open(path).rows())
    assert caught.value.kind == "dataset-damaged"
    assert 1000 < len(rows) < 2000
    assert rows == list(range(1, len(rows) + 1))
    assert f"{path} cannot be read beyond row {len(rows)}: " in caught.value.message


def append(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(LINE)


def rewrite(path: Path) -> None:
    size = path.stat().st_size
    path.write_bytes(b"x" * size)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize("change", [append, rewrite, replace, Path.unlink])
def test_a_file_that_changes_is_noticed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Between the digest and the rows, and while rows are read, no change passes."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINE * 3)
    dataset = Dataset.open(path)
    dataset.digest()
    rows = dataset.rows()
    next(rows)
    # File systems keep times in ticks; a change within one is left to size and inode.
    os.utime(path, ns=(0, 0))
    change(path)
    for reading in (lambda: list(rows), lambda: list(dataset.rows()), dataset.digest):
        with pytest.raises(CheckError, match=r"a\.jsonl was changed") as caught:
            reading()
        assert caught.value.kind == "dataset-changed"


def test_linked_files_and_folders_are_read_once(tmp_path: Path) -> None:
    """Links are followed, as caches use them, and a folder linked into itself is no trap."""
    (tmp_path / "blob").write_bytes(LINE)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "b.jsonl").write_bytes(LINE)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.jsonl").symlink_to("../blob")
    (folder / "linked").symlink_to("../store")
    (folder / "self").symlink_to(".")
    assert [row.file for row in Dataset.open(folder).rows()] == ["a.jsonl", "linked/b.jsonl"]


def test_a_link_to_nothing_is_missing(tmp_path: Path) -> None:
    """A data file that is not there any more is named, not passed over."""
    (tmp_path / "a.jsonl").write_bytes(LINE)
    (tmp_path / "b.jsonl").symlink_to("gone")
    with pytest.raises(MissingError, match=r"b\.jsonl: No such file") as caught:
        Dataset.open(tmp_path)
    assert caught.value.kind == "dataset-missing"


@pytest.mark.timeout(30)
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """What can be read only once is no dataset, and nobody waits for it."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    for source in (tmp_path, tmp_path / "pipe.jsonl"):
        with pytest.raises(MissingError, match="save it to one") as caught:
            Dataset.open(source)
        assert caught.value.kind == "dataset-missing"


@pytest.mark.parametrize("source", ["a\0b", "x" * 300, ""])
def test_a_path_that_cannot_be_is_missing(tmp_path: Path, source: str) -> None:
    """Any argument is answered with a sentence."""
    with pytest.raises(MissingError) as caught:
        Dataset.open(f"{tmp_path}/void/{source}")
    assert caught.value.kind == "dataset-missing"


def test_a_name_that_is_not_text_is_shown_as_far_as_it_is(tmp_path: Path) -> None:
    """Rows of a file with any name can be written to a plan."""
    name = os.fsdecode(b"caf\xe9.jsonl")
    (tmp_path / name).write_bytes(LINE)
    (row,) = Dataset.open(tmp_path).rows()
    assert row.file == "caf\N{REPLACEMENT CHARACTER}.jsonl"
