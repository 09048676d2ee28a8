"""The capture spec."""

import json
from dataclasses import replace
from typing import Any

import pytest
from statetap_contract import CaptureSpec

SPEC = CaptureSpec("m", "r", (2, 15, 27), "post", 576, "bfloat16")


def test_a_row_is_the_aux_layers_and_the_last_state() -> None:
    """Three aux layers and the last hidden state of 576 bf16 elements are 4,608 bytes."""
    assert SPEC.slot_names == ("h2", "h15", "h27", "last")
    assert (SPEC.row_width, SPEC.row_bytes) == (2304, 4608)


def test_kimi_rows_have_the_published_size() -> None:
    """7168 x 4 x 2 bytes = 57,344 bytes a token."""
    assert replace(SPEC, hidden_size=7168).row_bytes == 57_344


def test_spec_survives_json() -> None:
    """Reading back gives the same spec and digest."""
    read = CaptureSpec.from_json(json.loads(json.dumps(SPEC.to_json())))
    assert read == SPEC
    assert read.digest == SPEC.digest


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"revision": "s"},
        {"layers": (2, 15, 28)},
        {"norm": "pre"},
        {"hidden_size": 577},
        {"dtype": "float16"},
    ],
)
def test_every_field_is_in_the_digest(change: dict[str, Any]) -> None:
    """Two specs share a queue only when they are equal."""
    assert replace(SPEC, **change).digest != SPEC.digest


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layers": ()}, "layers"),
        ({"layers": (3, 2)}, "ascending"),
        ({"layers": (2, 2)}, "ascending"),
        ({"layers": (-1, 2)}, "layers"),
        ({"norm": "layer"}, "norm"),
        ({"hidden_size": 0}, "hidden size"),
        ({"dtype": "int8"}, "dtype"),
        ({"model": ""}, "model"),
    ],
)
def test_impossible_specs_are_refused(change: dict[str, Any], reason: str) -> None:
    """The sentence names what is wrong."""
    with pytest.raises(ValueError, match=reason):
        replace(SPEC, **change)


@pytest.mark.parametrize("change", [{"layers": "2"}, {"hidden_size": 5.0}, {"new": 1}])
def test_foreign_json_is_refused(change: dict[str, object]) -> None:
    """Nothing is guessed, defaulted or ignored."""
    with pytest.raises(ValueError, match="the capture spec"):
        CaptureSpec.from_json(SPEC.to_json() | change)
