"""The dump's file layout, against the safetensors library."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from statetap_contract import (
    HEADER_BYTES,
    Receipt,
    decode_header,
    dump_name,
    encode_header,
    layout_of,
)

KEY = "0123456789abcdef" * 2
RECEIPT = Receipt(
    key=KEY,
    attempt="1",
    path=f"/dumps/{KEY}.safetensors",
    host="h",
    spec_digest="ab" * 16,
    num_tokens=3,
    row_width=4,
    dtype="float32",
    layers=(2,),
    norm="post",
    token_digest="cd" * 16,
    states_xxh3="ef" * 8,
    sglang_version="0",
    patch_version="0",
)


def test_a_dump_is_a_safetensors_file(tmp_path: Path) -> None:
    """The reference library reads both tensors and the receipt where the layout puts them."""
    layout = layout_of(RECEIPT)
    states = np.arange(12, dtype="<f4").reshape(3, 4)
    ids = np.array([7, 8, 9], "<i4")
    file = tmp_path / "d.safetensors"
    content = bytearray(layout.file_bytes)
    content[:HEADER_BYTES] = encode_header(RECEIPT)
    content[layout.states_offset : layout.token_ids_offset] = states.tobytes()
    content[layout.token_ids_offset :] = ids.tobytes()
    file.write_bytes(content)
    with safe_open(file, "numpy") as opened:
        assert set(opened.keys()) == {"states", "token_ids"}
        np.testing.assert_array_equal(opened.get_tensor("states"), states)
        np.testing.assert_array_equal(opened.get_tensor("token_ids"), ids)
        assert json.loads(opened.metadata()["receipt"])["key"] == KEY


def test_the_header_gives_the_receipt_back() -> None:
    """Whole headers are read exactly."""
    header = encode_header(RECEIPT)
    assert len(header) == HEADER_BYTES
    assert decode_header(header) == RECEIPT


@pytest.mark.parametrize(
    "header",
    [
        b"",
        bytes(HEADER_BYTES),
        encode_header(RECEIPT)[:-1],
        struct.pack("<Q", HEADER_BYTES - 8) + b"{}".ljust(HEADER_BYTES - 8),
        encode_header(RECEIPT).replace(b'"F32"', b'"F16"'),
        encode_header(RECEIPT).replace(b"float32", b"float99"),
        encode_header(RECEIPT).replace(b"[0, 48]", b"[4, 48]"),
    ],
)
def test_anything_else_is_refused(header: bytes) -> None:
    """A header that is cut, absent or at odds with its own receipt does not pass."""
    with pytest.raises(ValueError, match=r"dump|JSON|Expecting|float99"):
        decode_header(header)


@pytest.mark.parametrize("key", ["", "../x", KEY.upper(), KEY + "0", KEY[:-1] + "/"])
def test_only_keys_become_names(key: str) -> None:
    """No path ever comes from a request."""
    with pytest.raises(ValueError, match="sample key"):
        dump_name(key)


def test_a_receipt_that_does_not_fit_is_refused() -> None:
    """The header never grows into the rows."""
    with pytest.raises(ValueError, match="header needs"):
        encode_header(replace(RECEIPT, path="/" + "x" * HEADER_BYTES))
