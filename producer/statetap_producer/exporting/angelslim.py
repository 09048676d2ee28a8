"""Files for AngelSlim's offline EAGLE-3 training."""

from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from statetap_contract import CaptureSpec

from statetap_producer.exporting.new_file import NewFile
from statetap_producer.exporting.specforge import ckpt_name, save_mapping
from statetap_producer.exporting.torch_file import (
    save_torch,
    state_tensors,
    token_tensors,
    torch_bytes,
)
from statetap_producer.exporting.trainer_format import TRAIN, Companion, ExportContent, SampleStream

_FILES_A_FOLDER: Final = 5_000


class AngelSlim:
    """A ``.ckpt`` file a sample, every tensor with a batch axis. ``hidden_states`` are aux states.

    It asks for a mapping of the vocabulary among the samples, even where that maps all to itself.
    """

    name = "angelslim"
    norms = ("post",)
    num_layers = 3
    needs_vocabulary = True
    needs_token_counts = False
    suffixes = (".ckpt",)

    def file_name(self, place: int, num_train: int) -> PurePosixPath:
        return ckpt_name(place, num_train, _FILES_A_FOLDER)

    def file_bytes(self, spec: CaptureSpec, num_tokens: int) -> int:
        return torch_bytes(spec, num_tokens)

    def write(self, sample: SampleStream, file: NewFile) -> None:
        token_ids, loss_mask = token_tensors(sample)
        aux, last = state_tensors(sample)
        save_torch(
            {
                "input_ids": token_ids[None],
                "loss_mask": loss_mask[None],
                "hidden_states": aux[None],
                "target_hiddens": last[None],
            },
            file,
        )

    def companions(self, content: ExportContent) -> Iterator[Companion]:
        if content.vocabulary is not None:
            yield f"{TRAIN}/vocab_mapping.pt", partial(save_mapping, content.vocabulary)

    def facts(self, _: ExportContent) -> dict[str, object]:
        return {}
