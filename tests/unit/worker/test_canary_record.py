"""The canary's record: the first one stays, whole, and nothing else is taken for it."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from statetap_contract import RUN_NAME_FORM, CaptureSpec, StopError, dump_name
from statetap_worker.proving.canary_record import CanaryRecord
from statetap_worker.proving.dump import Dump, map_dump

from .conftest import JOB, SPEC, DumpBuilder, good_states


@pytest.fixture
def record(tmp_path: Path) -> CanaryRecord:
    runs = tmp_path / "runs"
    runs.mkdir()
    return CanaryRecord.of(runs, SPEC)


@pytest.fixture
def dump(dumps: DumpBuilder) -> Dump:
    return map_dump(dumps.folder, dumps.write())


def kept(record: CanaryRecord) -> Dump:
    return record.read(JOB.prompt, SPEC)


def test_the_record_is_a_dump_beside_the_runs(record: CanaryRecord, dump: Dump) -> None:
    """Named by its spec, in a folder that no run can have, with nothing else left there."""
    assert record.keep_first(dump)
    folder = record.path.parent
    assert not RUN_NAME_FORM.fullmatch(folder.name)
    assert [file.name for file in folder.iterdir()] == [dump_name(SPEC.digest)]
    assert kept(record).receipt() == dump.receipt()
    np.testing.assert_array_equal(kept(record).states, good_states())
    assert CanaryRecord.of(folder.parent, replace(SPEC, norm="pre")).path != record.path


def test_the_first_stays(record: CanaryRecord, dumps: DumpBuilder, dump: Dump) -> None:
    """Whoever comes second changes nothing and is told so."""
    record.keep_first(dump)
    second = map_dump(dumps.folder, dumps.write(states=good_states() + np.uint16(1), attempt="a2"))
    assert not record.keep_first(second)
    assert kept(record).receipt().attempt == "a1"
    np.testing.assert_array_equal(kept(record).states, good_states())


def test_of_two_at_once_one_wins(
    record: CanaryRecord, dumps: DumpBuilder, dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other finds the name taken when it wants to give it, and leaves nothing behind."""
    record.keep_first(dump)
    second = map_dump(dumps.folder, dumps.write(attempt="a2"))
    monkeypatch.setattr(Path, "exists", lambda _path: False)
    assert not record.keep_first(second)
    assert kept(record).receipt().attempt == "a1"
    assert len(list(record.path.parent.iterdir())) == 1


def test_a_file_system_without_hard_links(
    record: CanaryRecord, dump: Dump, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is made all the same."""

    def refuse(_path: Path, _target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert record.keep_first(dump)
    assert not record.keep_first(dump)
    np.testing.assert_array_equal(kept(record).states, good_states())
    assert len(list(record.path.parent.iterdir())) == 1


def test_what_a_killed_process_left_is_no_record(record: CanaryRecord, dump: Dump) -> None:
    """A file that is not whole never has the record's name, and the next try replaces it."""
    folder = record.path.parent
    folder.mkdir()
    (folder / f".{record.path.stem}.{JOB.key}").write_bytes(b"cut")
    assert record.keep_first(dump)
    assert [file.name for file in folder.iterdir()] == [record.path.name]
    assert kept(record).receipt() == dump.receipt()


@pytest.mark.parametrize("size", [0, 100, 4096, 4096 + 5 * 48, 4096 + 5 * 48 + 19])
def test_a_cut_record_is_named(record: CanaryRecord, dump: Dump, size: int) -> None:
    """With what to do; it is neither used nor replaced."""
    record.keep_first(dump)
    whole = record.path.read_bytes()
    assert len(whole) == 4096 + 5 * 48 + 20
    record.path.write_bytes(whole[:size])
    assert_broken(record)
    assert not record.keep_first(dump)


@pytest.mark.parametrize("place", [8, 4096, 4096 + 5 * 48 - 1, 4096 + 5 * 48, -1])
def test_a_record_with_a_changed_byte_is_named(
    record: CanaryRecord, dump: Dump, place: int
) -> None:
    """In the header, the states or the ids."""
    record.keep_first(dump)
    content = bytearray(record.path.read_bytes())
    content[place] ^= 0xFF
    record.path.write_bytes(content)
    assert_broken(record)


def test_a_record_of_another_prompt_is_named(record: CanaryRecord, dumps: DumpBuilder) -> None:
    """As an earlier version with another prompt may have left it."""
    other = replace(JOB, prompt=replace(JOB.prompt, token_ids=JOB.prompt.token_ids[::-1]))
    record.keep_first(map_dump(dumps.folder, dumps.write(job=other)))
    assert_broken(record)


def test_a_record_of_another_spec_is_named(record: CanaryRecord, dumps: DumpBuilder) -> None:
    """As somebody who copies files may have left it."""
    other = CaptureSpec("m", "r2", (1, 3), "post", 8, "bfloat16")
    record.keep_first(map_dump(dumps.folder, dumps.write(spec_digest=other.digest)))
    assert_broken(record)


def assert_broken(record: CanaryRecord) -> None:
    with pytest.raises(StopError) as caught:
        kept(record)
    assert caught.value.kind == "canary-record-broken"
    assert str(record.path) in caught.value.message
    assert "delete it" in caught.value.message


def test_a_folder_that_cannot_be_made_is_named(record: CanaryRecord, dump: Dump) -> None:
    """No server is trusted because there was no room for a record."""
    record.path.parent.write_text("in the way")
    with pytest.raises(StopError, match=r"\.canaries") as caught:
        record.keep_first(dump)
    assert caught.value.kind == "canary-record-unwritable"


def test_a_folder_in_the_record_s_place_is_no_record(record: CanaryRecord) -> None:
    """Nor is a link or a pipe."""
    record.path.mkdir(parents=True)
    assert_broken(record)


def test_a_record_that_cannot_be_read_is_named(
    record: CanaryRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions mean nothing to root, who may run this test."""

    def refuse(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(StopError, match="cannot read") as caught:
        kept(record)
    assert caught.value.kind == "canary-record-unreadable"
