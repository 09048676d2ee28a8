"""A prompt, its dump as a right server would leave it, and what a worker is given."""

from array import array
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from statetap_contract import (
    HEADER_BYTES,
    CaptureSpec,
    Job,
    Prompt,
    Receipt,
    ServerCapture,
    dump_name,
    encode_header,
    layout_of,
)

SPEC = CaptureSpec("m", "r", (1, 3), "post", 8, "bfloat16")
#: The server that ``DumpBuilder`` writes the dumps of.
CAPTURE = ServerCapture(
    spec=SPEC,
    dumps="/elsewhere",
    host="server-host",
    raw_layer_ids=(0, 2),
    vocab_size=512,
    context_length=4096,
    sglang_version="0.5.23",
    patch_version="0.1.0",
    is_writer_alive=True,
    num_published=0,
    num_failed=0,
    num_hook_errors=0,
)
JOB = Job.of("a-run", SPEC.digest, Prompt(array("i", [5, 6, 7, 8, 9]), ((2, 5),)))


def good_states(num_rows: int = 5) -> npt.NDArray[np.uint16]:
    """[num_rows, 24] bf16 bit patterns of finite, non-zero numbers."""
    values = np.random.default_rng(0).uniform(1, 2, (num_rows, SPEC.row_width)).astype("<f4")
    return (values.view("<u4") >> 16).astype("<u2")


@dataclass
class DumpBuilder:
    """Writes a dump that is right, but for what a test changes."""

    folder: Path

    def write(
        self,
        *,
        job: Job = JOB,
        states: npt.NDArray[np.uint16] | None = None,
        token_ids: list[int] | None = None,
        attempt: str = "a1",
        checksum: str | None = None,
        **changes: Any,
    ) -> Receipt:
        """Returns the receipt that the server would answer with."""
        states = good_states() if states is None else states
        ids = np.array(job.prompt.token_ids if token_ids is None else token_ids, "<i4")
        receipt = Receipt(
            key=job.key,
            attempt=attempt,
            path=f"/elsewhere/{dump_name(job.key)}",
            host="server-host",
            spec_digest=SPEC.digest,
            num_tokens=len(states),
            row_width=SPEC.row_width,
            dtype=SPEC.dtype,
            layers=SPEC.layers,
            norm=SPEC.norm,
            token_digest=job.prompt.token_digest(),
            states_xxh3=checksum or xxhash.xxh3_64_hexdigest(states.tobytes()),
            sglang_version="0.5.23",
            patch_version="0.1.0",
        )
        receipt = replace(receipt, **changes)
        layout = layout_of(receipt)
        content = bytearray(layout.file_bytes)
        content[:HEADER_BYTES] = encode_header(receipt)
        content[layout.states_offset : layout.states_offset + states.nbytes] = states.tobytes()
        content[layout.token_ids_offset :] = ids.tobytes()
        (self.folder / dump_name(job.key)).write_bytes(content)
        return receipt


@pytest.fixture
def dumps(tmp_path: Path) -> DumpBuilder:
    folder = tmp_path / "dumps"
    folder.mkdir()
    return DumpBuilder(folder)


@pytest.fixture
def dump_path(dumps: DumpBuilder) -> Path:
    return dumps.folder / dump_name(JOB.key)
