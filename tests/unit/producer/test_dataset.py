"""A dataset file, line by line."""

import hashlib
from pathlib import Path

import pytest
from statetap_contract import MissingError
from statetap_producer.dataset import Dataset, dataset_digest


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    """A byte order mark, CRLF, blank lines and a last line without an end change no number."""
    path = tmp_path / "odd.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{1}\r\n\r\n  \n{2}\n\n{3}")
    assert list(Dataset(path).lines()) == [(1, b"{1}"), (4, b"{2}"), (6, b"{3}")]


def test_the_digest_is_that_of_all_bytes(tmp_path: Path) -> None:
    """Reading the lines digests every byte of the file, blank lines and all."""
    content = b"\xef\xbb\xbf{1}\r\n\n{2}"
    path = tmp_path / "odd.jsonl"
    path.write_bytes(content)
    dataset = Dataset(path)
    list(dataset.lines())
    expected = hashlib.blake2b(content, digest_size=16).hexdigest()
    assert dataset.digest == dataset_digest(path) == expected
    assert dataset.num_bytes_read == len(content)


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_what_is_no_file_is_missing(tmp_path: Path, name: str) -> None:
    """A dataset that is not there, or is a folder, is named."""
    with pytest.raises(MissingError, match="cannot read the dataset") as caught:
        list(Dataset(tmp_path / name).lines())
    assert caught.value.kind == "dataset-missing"
