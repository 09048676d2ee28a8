"""Prompt and sample key."""

import hashlib
import struct
from array import array

import pytest
from statetap_contract import KEY_FORM, Prompt, sample_key

SPEC = "0" * 32


def prompt(ids: list[int], *spans: tuple[int, int]) -> Prompt:
    return Prompt(array("i", ids), spans)


def test_key_is_the_documented_digest() -> None:
    """The key is blake2b-128 over spec digest, count, int32 ids and mask bytes."""
    expected = hashlib.blake2b(
        SPEC.encode() + struct.pack("<Q", 3) + struct.pack("<3i", 5, 6, 70000) + b"\0\1\1",
        digest_size=16,
        person=b"statetap-key-v1",
    ).hexdigest()
    assert sample_key(SPEC, prompt([5, 6, 70000], (1, 3))) == expected
    assert KEY_FORM.fullmatch(expected)


def test_key_differs_when_any_part_differs() -> None:
    """Ids, their order, the mask and the spec each change the key."""
    keys = {
        sample_key(SPEC, prompt([1, 2, 3], (1, 3))),
        sample_key(SPEC, prompt([1, 3, 2], (1, 3))),
        sample_key(SPEC, prompt([1, 2, 3], (1, 2))),
        sample_key(SPEC, prompt([1, 2, 3])),
        sample_key(SPEC, prompt([1, 2, 3, 0])),
        sample_key("1" * 32, prompt([1, 2, 3], (1, 3))),
    }
    assert len(keys) == 6


def test_mask_has_a_byte_per_token() -> None:
    """Spans are half-open."""
    assert prompt([9] * 6, (0, 2), (4, 6)).loss_mask() == bytes([1, 1, 0, 0, 1, 1])


def test_token_bytes_are_little_endian_int32() -> None:
    """Whatever the machine, the digested form is the same."""
    assert prompt([1, 258]).token_bytes() == b"\x01\0\0\0\x02\x01\0\0"


@pytest.mark.parametrize(
    ("ids", "spans", "reason"),
    [
        ([], (), "empty"),
        ([1, -1], (), "negative"),
        ([1, 2], ((0, 3),), "beyond"),
        ([1, 2], ((-1, 1),), "beyond"),
        ([1, 2], ((1, 1),), "ascending"),
        ([1, 2, 3], ((2, 3), (0, 1)), "ascending"),
        ([1, 2, 3], ((0, 1), (1, 2)), "touch"),
    ],
)
def test_impossible_prompts_are_refused(
    ids: list[int], spans: tuple[tuple[int, int], ...], reason: str
) -> None:
    """A prompt that exists is a prompt that makes sense."""
    with pytest.raises(ValueError, match=reason):
        Prompt(array("i", ids), spans)


def test_other_integer_widths_are_refused() -> None:
    """int64 ids would be digested as other bytes."""
    with pytest.raises(ValueError, match="int32"):
        Prompt(array("q", [1, 2]), ())
