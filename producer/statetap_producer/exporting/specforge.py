"""Files for SpecForge's offline EAGLE-3 training; read by SpecForge 0.2.0."""

from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Final

import torch
from statetap_contract import CaptureSpec

from statetap_producer.exporting.new_file import NewFile
from statetap_producer.exporting.torch_file import (
    save_torch,
    state_tensors,
    token_tensors,
    torch_bytes,
)
from statetap_producer.exporting.trainer_format import (
    Companion,
    ExportContent,
    SampleStream,
    split_name,
)
from statetap_producer.exporting.vocabulary import VocabularyMapping

_FILES_A_FOLDER: Final = 2_000


class SpecForge:
    """A ``.ckpt`` file a sample. Paths are sorted as strings, hence the zeros in front."""

    name = "specforge"
    norms = ("post",)
    num_layers = 3
    needs_vocabulary = False
    needs_token_counts = False
    suffixes = (".ckpt", ".ckpt.gz")

    def file_name(self, place: int, num_train: int) -> PurePosixPath:
        return ckpt_name(place, num_train, _FILES_A_FOLDER)

    def file_bytes(self, spec: CaptureSpec, num_tokens: int) -> int:
        return torch_bytes(spec, num_tokens)

    def write(self, sample: SampleStream, file: NewFile) -> None:
        token_ids, loss_mask = token_tensors(sample)
        aux, last = state_tensors(sample)
        save_torch(
            {
                "input_ids": token_ids,
                "loss_mask": loss_mask,
                "hidden_state": last[None],
                "aux_hidden_state": aux[None],
            },
            file,
        )

    def companions(self, content: ExportContent) -> Iterator[Companion]:
        if content.vocabulary is not None:
            save = partial(save_mapping, content.vocabulary)
            yield "vocab_mapping/vocab_mapping.pt", save

    def facts(self, _: ExportContent) -> dict[str, object]:
        return {}


def ckpt_name(place: int, num_train: int, files_a_folder: int) -> PurePosixPath:
    """``train/rows_000002000-000004000/data_000002345.ckpt``."""
    split, number = split_name(place, num_train)
    first = number - number % files_a_folder
    folder = f"rows_{first:09d}-{first + files_a_folder:09d}"
    return PurePosixPath(split, folder, f"data_{number:09d}.ckpt")


def save_mapping(vocabulary: VocabularyMapping, file: NewFile) -> None:
    """Writes ``d2t``, int64 offsets, and ``t2d``, bool, as one dict."""
    d2t, t2d = torch.from_numpy(vocabulary.d2t), torch.from_numpy(vocabulary.t2d)
    save_torch({"d2t": d2t, "t2d": t2d}, file)
