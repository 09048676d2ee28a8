"""Files for NVIDIA Model Optimizer's offline EAGLE-3 training."""

from collections.abc import Iterator
from functools import partial
from pathlib import PurePosixPath

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


class ModelOpt:
    """A ``.pt`` file a sample, which says itself whether its last state has had the final norm."""

    name = "modelopt"
    norms = ("post", "pre")
    num_layers = None
    needs_vocabulary = False
    needs_token_counts = False
    suffixes = (".pt",)

    def file_name(self, place: int, num_train: int) -> PurePosixPath:
        split, number = split_name(place, num_train)
        return PurePosixPath(split, f"data_{number:09d}.pt")

    def file_bytes(self, spec: CaptureSpec, num_tokens: int) -> int:
        return torch_bytes(spec, num_tokens)

    def write(self, sample: SampleStream, file: NewFile) -> None:
        token_ids, loss_mask = token_tensors(sample)
        aux, last = state_tensors(sample)
        save_torch(
            {
                "conversation_id": sample.key,
                "input_ids": token_ids,
                "loss_mask": loss_mask,
                "hidden_states": last,
                "aux_hidden_states": aux,
                "hidden_states_prenorm": sample.spec.norm == "pre",
            },
            file,
        )

    def companions(self, content: ExportContent) -> Iterator[Companion]:
        # Found by its ending, it would count as a sample among them.
        if content.vocabulary is not None:
            yield "d2t.pt", partial(save_torch, torch.from_numpy(content.vocabulary.d2t))

    def facts(self, _: ExportContent) -> dict[str, object]:
        return {}
