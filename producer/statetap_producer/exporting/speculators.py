"""Files for speculators' offline EAGLE-3 training; read by speculators 0.9.0."""

from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import numpy as np
from statetap_contract import CaptureSpec
from statetap_store import RunReader

from statetap_producer.exporting.datasets_folder import (
    INFO_FILE,
    ROWS_FILE,
    STATE_FILE,
    describe_rows,
    write_rows,
)
from statetap_producer.exporting.new_file import NewFile
from statetap_producer.exporting.safetensors_header import TensorForm, safetensors_header
from statetap_producer.exporting.sample_list import samples_digest
from statetap_producer.exporting.torch_file import save_torch
from statetap_producer.exporting.trainer_format import Companion, ExportContent, SampleStream

#: The names that safetensors has for a capture spec's dtypes.
_DTYPES: Final = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


class Speculators:
    """A safetensors file a sample, beside a ``datasets`` folder with ids and masks.

    A file's number is its row in the dataset. The trainer takes the first rows for training and the
    rest for validation, by a ratio.
    """

    name = "speculators"
    norms = ("pre",)
    num_layers = None
    needs_vocabulary = False
    needs_token_counts = True
    suffixes = (".safetensors",)

    def file_name(self, place: int, num_train: int) -> PurePosixPath:  # noqa: ARG002 - one folder
        return PurePosixPath("hidden_states", f"hs_{place}.safetensors")

    def file_bytes(self, spec: CaptureSpec, num_tokens: int) -> int:
        forms = _forms(spec, num_tokens)
        return len(safetensors_header(forms)) + sum(form.num_bytes for form in forms.values())

    def write(self, sample: SampleStream, file: NewFile) -> None:
        file.write(safetensors_header(_forms(sample.spec, len(sample.token_ids))))
        file.write(sample.token_ids.astype("<i8").data)
        for rows in sample.blocks:
            file.write(rows.reshape(-1).view(np.uint8).data)

    def companions(self, content: ExportContent) -> Iterator[Companion]:
        def rows(file: NewFile) -> None:
            with RunReader(content.table) as reader:
                write_rows(reader, file)

        def describe(name: str, file: NewFile) -> None:
            file.write(describe_rows(samples_digest(content.table))[name])

        yield ROWS_FILE, rows
        yield STATE_FILE, partial(describe, STATE_FILE)
        yield INFO_FILE, partial(describe, INFO_FILE)
        counts = content.token_counts
        if counts is not None:
            frequencies = {token: int(counts[token]) for token in np.flatnonzero(counts).tolist()}
            yield "token_freq.pt", partial(save_torch, frequencies)
        if (vocabulary := content.vocabulary) is not None:
            # The trainer looks for names with the size that it is told.
            size = len(vocabulary.d2t)
            yield f"d2t-{size}.npy", lambda file: np.save(file, vocabulary.d2t)
            yield f"t2d-{size}.npy", lambda file: np.save(file, vocabulary.t2d)

    def facts(self, content: ExportContent) -> dict[str, object]:
        if not content.num_val:
            return {}
        # int(ratio * samples) is where the trainer splits; half a sample more survives rounding.
        return {"train_data_ratio": (content.num_train + 0.5) / len(content.table)}


def _forms(spec: CaptureSpec, num_tokens: int) -> dict[str, TensorForm]:
    shape = (num_tokens, spec.num_slots, spec.hidden_size)
    return {
        "token_ids": TensorForm("I64", (num_tokens,)),
        "hidden_states": TensorForm(_DTYPES[spec.dtype], shape),
    }
