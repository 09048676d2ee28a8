"""What rerun writes down."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from statetap_contract import StatetapError
from statetap_producer.run.pardons import Pardon, Pardons


def test_pardons_add_up(tmp_path: Path) -> None:
    """The number of letters is the latest, the number of reruns is that of the lines."""
    pardons = Pardons(tmp_path / "reruns.jsonl")
    assert pardons.read() == {}
    pardons.add({"k1": 1, "k2": 2})
    pardons.add({"k1": 3})
    assert pardons.read() == {"k1": Pardon(3, 2), "k2": Pardon(2, 1)}
    assert pardons.read()["k3"] == Pardon(0, 0)
    assert (tmp_path / "reruns.jsonl").read_text() == (
        '{"key": "k1", "num_letters": 1}\n{"key": "k2", "num_letters": 2}\n'
        '{"key": "k1", "num_letters": 3}\n'
    )


def test_a_line_cut_by_a_crash_is_no_pardon(tmp_path: Path) -> None:
    """Its sample is dead as before; what is written next stands on a line of its own."""
    path = tmp_path / "reruns.jsonl"
    path.write_text('{"key": "k1", "num_letters": 1}\n{"key": "k2", "num')
    pardons = Pardons(path)
    assert pardons.read() == {"k1": Pardon(1, 1)}
    pardons.add({"k2": 1})
    assert pardons.read() == {"k1": Pardon(1, 1), "k2": Pardon(1, 1)}


@pytest.mark.parametrize(
    "line", ["[]", "{}", '{"key": "k"}', '{"key": "k", "num_letters": "1"}', "3"]
)
def test_a_whole_line_that_is_no_pardon_is_named(tmp_path: Path, line: str) -> None:
    """JSON that rerun does not write is reported by file and line."""
    path = tmp_path / "reruns.jsonl"
    path.write_text('{"key": "k1", "num_letters": 1}\n' + line + "\n")
    with pytest.raises(StatetapError, match=r"reruns\.jsonl:2 cannot be read") as caught:
        Pardons(path).read()
    assert caught.value.kind == "reruns-damaged"


@contextmanager
def room_for(num_bytes: int) -> Iterator[None]:
    """Files may have so many bytes: the kernel writes what fits and then refuses."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("content", ["", '{"key": "k1", "num_letters": 1}\n', '{"key": "k1", "nu'])
def test_a_full_disk_pardons_all_or_none(tmp_path: Path, content: str) -> None:
    """The file is as before, and one sentence names it; with room, all are pardoned."""
    path = tmp_path / "reruns.jsonl"
    path.write_text(content)
    letters = {f"sample-{number}": 1 for number in range(1000)}
    with room_for(5000), pytest.raises(StatetapError, match="nothing was pardoned") as caught:
        Pardons(path).add(letters)
    assert (caught.value.kind, caught.value.exit_code) == ("reruns-unwritable", 3)
    assert str(path) in caught.value.message
    assert path.read_text() == content
    Pardons(path).add(letters)
    assert Pardons(path).read().keys() >= letters.keys()


def test_a_folder_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    """As is one that is read-only."""
    with pytest.raises(StatetapError, match="cannot be written") as caught:
        Pardons(tmp_path / "gone" / "reruns.jsonl").add({"k": 1})
    assert caught.value.kind == "reruns-unwritable"
