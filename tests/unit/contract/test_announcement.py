"""What workers announce, byte for byte."""

import json
from array import array
from dataclasses import replace

import pytest
from statetap_contract import DeadLetter
from statetap_contract.announcement import (
    Announcement,
    Presence,
    announced_key,
    announced_letters_key,
    announced_samples_key,
    pack_letters,
    pack_samples,
    unpack_letters,
    unpack_samples,
)

RECORD = Announcement("e1", 3, 1, 70, "w", "gpu-1", "/data/runs", 1_700_000_000, 5)
LETTER = DeadLetter("ab" * 16, "mismatch", "why", 6, "http://s", "2026-01-01T00:00:00Z")


def test_a_sample_takes_twenty_bytes() -> None:
    """First all keys, then all counts as little-endian uint32."""
    batch = pack_samples("00" * 15 + "01" + "ff" * 16, array("I", [258, 1]))
    expected = bytes(15) + b"\1" + b"\xff" * 16 + b"\2\1\0\0" + b"\1\0\0\0"
    assert batch == expected
    assert list(unpack_samples(batch)) == [("00" * 15 + "01", 258), ("ff" * 16, 1)]


def test_an_empty_batch_holds_nothing() -> None:
    """Nothing goes in and nothing comes out."""
    assert list(unpack_samples(pack_samples("", array("I")))) == []


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ("ab" * 16, array("I")),
        ("ab" * 15, array("I", [1])),
        ("xy" * 16, array("I", [1])),
        ("ab" * 16, array("i", [1])),
    ],
)
def test_keys_and_counts_must_go_together(keys: str, counts: "array[int]") -> None:
    """Else the batch would say something else when it is read."""
    with pytest.raises(ValueError, match=r"hex|counts"):
        pack_samples(keys, counts)


def test_a_cut_batch_is_refused() -> None:
    """A batch of which a byte is missing is no batch."""
    with pytest.raises(ValueError, match="19 bytes"):
        unpack_samples(bytes(19))


def test_letters_come_back() -> None:
    """In their order, with every field; repeated messages cost little."""
    letters = [replace(LETTER, key=f"{number:032x}", message="x" * 200) for number in range(100)]
    batch = pack_letters(letters)
    assert unpack_letters(batch) == letters
    assert len(batch) < 100 * 50


@pytest.mark.parametrize("batch", [b"", b"no zlib", pack_letters([LETTER])[:-3]])
def test_what_is_no_batch_of_letters_is_refused(batch: bytes) -> None:
    """With a ValueError, whatever the bytes are."""
    with pytest.raises(ValueError, match="dead letters"):
        unpack_letters(batch)


def test_a_record_comes_back() -> None:
    """Every field, as JSON that other programs can read."""
    assert json.loads(RECORD.encode())["num_samples"] == 70
    assert Announcement.decode(RECORD.encode()) == RECORD


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, RECORD.encode()[:-1] + b', "more": 1}'],
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    """Another version's record is not half read."""
    with pytest.raises(ValueError, match=r".+"):
        Announcement.decode(data)


PRESENCE = Presence("w", "gpu-1", "/data/runs", 17, ("a",))


def test_a_presence_comes_back() -> None:
    """It tells of all runs but those that are behind, and of none before it can."""
    assert Presence.decode(PRESENCE.encode()) == PRESENCE
    assert (PRESENCE.tells("a"), PRESENCE.tells("b")) == (False, True)
    assert not replace(PRESENCE, time_us=0).tells("b")


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, PRESENCE.encode().replace(b'["a"]', b"[1]")],
)
def test_what_is_no_presence_is_refused(data: bytes) -> None:
    """Another version's is not half read."""
    with pytest.raises(ValueError, match=r".+"):
        Presence.decode(data)


def test_names_in_redis_do_not_collide() -> None:
    """Whatever runs are called, each list belongs to one place, run and epoch."""
    runs = "a", "a.b", "b", "e.a"
    names = [
        *(announced_key(place) for place in ("p", "q")),
        *(
            name(place, run, epoch)
            for name in (announced_samples_key, announced_letters_key)
            for place in ("p", "q")
            for run in runs
            for epoch in ("e", "f")
        ),
    ]
    assert len(set(names)) == len(names) == 2 + 2 * 2 * 4 * 2
