"""What all readers of exports do: one process reads many, since the trainers' imports take long."""

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

#: Exports come in pairs with the file that is made of each.
_PAIR = 2


def read_every(tensors_of: Callable[[Path, Path], dict[str, torch.Tensor]]) -> None:
    """Reads MODEL EXPORT OUT [EXPORT OUT ...] from the command line.

    An OUT becomes a safetensors file of what ``tensors_of(export, model)`` gives. Where the loader
    ends with an error, its words are in a file of that name with ``.error`` behind it.
    """
    model, *rest = map(Path, sys.argv[1:])
    for export, out in zip(rest[::_PAIR], rest[1::_PAIR], strict=True):
        try:
            tensors = tensors_of(export, model)
        except Exception as error:  # noqa: BLE001  whatever a foreign loader raises is its answer
            Path(f"{out}.error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        else:
            save_file({name: value.detach().contiguous() for name, value in tensors.items()}, out)
