"""Every way in which a dump can be wrong is refused, each with its own kind."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from statetap_contract import MismatchError, Receipt, TransientError
from statetap_worker.proving.dump import map_dump
from statetap_worker.proving.validate import prove_dump, prove_origin, prove_receipt

from .conftest import CAPTURE, JOB, SPEC, DumpBuilder, good_states

#: What each field of a receipt might be instead.
OTHERS: dict[str, Any] = {
    "key": "0" * 32,
    "path": "/elsewhere/other.safetensors",
    "host": "another-host",
    "spec_digest": "0" * 32,
    "num_tokens": 4,
    "row_width": 16,
    "dtype": "float16",
    "layers": (1,),
    "norm": "pre",
    "token_digest": "0" * 32,
    "states_xxh3": "0" * 16,
    "sglang_version": "0.5.24",
    "patch_version": "0.1.1",
}


def prove(dumps: DumpBuilder, receipt: Receipt) -> None:
    prove_receipt(receipt, JOB, SPEC)
    prove_origin(receipt, CAPTURE)
    prove_dump(map_dump(dumps.folder, receipt), receipt, JOB, SPEC)


def test_a_right_dump_passes(dumps: DumpBuilder) -> None:
    """And what is mapped is what the server wrote."""
    receipt = dumps.write()
    prove(dumps, receipt)
    dump = map_dump(dumps.folder, receipt)
    np.testing.assert_array_equal(dump.states, good_states())
    assert dump.token_ids.tolist() == list(JOB.prompt.token_ids)


@pytest.mark.parametrize("field", OTHERS)
def test_a_receipt_of_something_else_is_refused(dumps: DumpBuilder, field: str) -> None:
    """Each field is proven, also where the dump's own receipt says the same."""
    kind = "dump-checksum" if field == "states_xxh3" else f"receipt-{field.replace('_', '-')}"
    with pytest.raises(MismatchError) as caught:
        prove(dumps, dumps.write(**{field: OTHERS[field]}))
    assert caught.value.kind == kind


def test_no_field_of_a_receipt_is_left_out() -> None:
    """But the attempt, which each try has anew: all it must do is to agree with the file's."""
    assert {field.name for field in fields(Receipt)} == OTHERS.keys() | {"attempt"}


def test_shifted_rows_with_the_right_count_are_refused(dumps: DumpBuilder) -> None:
    """The ids beside the rows betray the shift, and the sentence names the first wrong row."""
    receipt = dumps.write(token_ids=[5, 7, 8, 9, 9])
    with pytest.raises(MismatchError, match=r"row 1 .* token 7, .* 6 there") as caught:
        prove(dumps, receipt)
    assert caught.value.kind == "dump-token-ids"


@pytest.mark.parametrize("bit", [0, 7, 15, 5 * 24 * 16 - 1])
def test_a_flipped_bit_is_refused(dumps: DumpBuilder, dump_path: Path, bit: int) -> None:
    """Any bit of the rows."""
    receipt = dumps.write()
    content = bytearray(dump_path.read_bytes())
    content[4096 + bit // 8] ^= 1 << bit % 8
    dump_path.write_bytes(content)
    with pytest.raises(MismatchError) as caught:
        prove(dumps, receipt)
    assert caught.value.kind == "dump-checksum"


@pytest.mark.parametrize(
    ("bits", "kind"),
    [(0x7FC0, "states-not-finite"), (0x7F80, "states-not-finite"), (0xFF80, "states-not-finite")],
)
def test_a_value_that_is_not_finite_is_refused(dumps: DumpBuilder, bits: int, kind: str) -> None:
    """NaN, inf and -inf, anywhere, in spite of a right checksum."""
    states = good_states()
    states[3, 17] = bits
    with pytest.raises(MismatchError, match="slot last of row 3") as caught:
        prove(dumps, dumps.write(states=states))
    assert caught.value.kind == kind


@pytest.mark.parametrize("zero", [0x0000, 0x8000])
def test_a_layer_that_is_all_zero_is_refused(dumps: DumpBuilder, zero: int) -> None:
    """A missing layer shows as zeros, or minus zeros, in its slot of the row."""
    states = good_states()
    states[2, 8:16] = zero
    with pytest.raises(MismatchError, match="slot h3 of row 2") as caught:
        prove(dumps, dumps.write(states=states))
    assert caught.value.kind == "states-zero-row"


def test_large_finite_and_single_zero_values_pass(dumps: DumpBuilder) -> None:
    """Massive activations and zeros among others are what models compute."""
    states = good_states()
    states[1, 4], states[1, 5] = 0x7F7F, 0
    # The first of a slot, too.
    states[2, 8], states[3, 0] = 0x8000, 0
    prove(dumps, dumps.write(states=states))


def test_what_is_not_finite_is_found_where_slots_begin_with_zero(dumps: DumpBuilder) -> None:
    """Both kinds in one dump; the first row is named."""
    states = good_states()
    states[2, 0] = 0
    states[4, 9] = 0x7F80
    with pytest.raises(MismatchError, match="slot h3 of row 4") as caught:
        prove(dumps, dumps.write(states=states))
    assert caught.value.kind == "states-not-finite"


@pytest.mark.parametrize("cut", [0, 100, 4096, 4096 + 47])
def test_a_cut_file_is_refused(dumps: DumpBuilder, dump_path: Path, cut: int) -> None:
    """Nothing is read beyond its end."""
    receipt = dumps.write()
    dump_path.write_bytes(dump_path.read_bytes()[:cut])
    with pytest.raises(MismatchError) as caught:
        prove(dumps, receipt)
    assert caught.value.kind in {"dump-cut", "dump-unreadable"}


def test_the_dump_of_another_attempt_is_refused(dumps: DumpBuilder) -> None:
    """Receipt in the answer and receipt in the file must be one."""
    receipt = dumps.write()
    dumps.write(attempt="a2")
    with pytest.raises(MismatchError) as caught:
        prove(dumps, receipt)
    assert caught.value.kind == "dump-receipt"


def test_a_missing_dump_asks_about_the_folder(dumps: DumpBuilder, dump_path: Path) -> None:
    """The commonest mistake of a first installation."""
    receipt = dumps.write()
    dump_path.unlink()
    with pytest.raises(TransientError, match="same folder") as caught:
        prove(dumps, receipt)
    assert caught.value.kind == "dump-missing"
