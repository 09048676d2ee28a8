"""ShardDataset: samples as torch tensors, for a DataLoader."""

from typing import TypedDict

import torch
from torch.utils.data import Dataset

from statetap_store.run_reader import RunReader
from statetap_store.sample_table import SampleTable
from statetap_store.torch_view import to_torch


class TensorSample(TypedDict):
    """One sample of n tokens, unshifted: row t of the states is what followed from token t."""

    #: Sample key.
    key: str
    #: int64 [n].
    input_ids: torch.Tensor
    #: int64 [n], 1 where the loss is taken, else 0.
    loss_mask: torch.Tensor
    #: [n, num_layers * hidden_size] in the capture spec's dtype: aux layers, ascending.
    aux_states: torch.Tensor
    #: [n, hidden_size] in the same dtype: the last hidden state. Both are views of the same rows.
    last_states: torch.Tensor


class ShardDataset(Dataset[TensorSample]):
    """A map-style dataset over the samples of a table.

    Shards are opened when they are read from, by each DataLoader worker for itself, forked or
    spawned. All processes see the table's list, whatever is appended to the shards meanwhile.

    Reading a damaged sample raises CheckError, kind ``payload-corrupt``, with its key and its
    shard; no other sample takes its place.

    Args:
        table: the samples, see ``SampleTable.scan``.
        check: whether to compute every sample's checksums, as ``RunReader`` does.
    """

    def __init__(self, table: SampleTable, *, check: bool = True) -> None:
        self.table = table
        self._check = check
        self._reader = RunReader(table)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> TensorSample:
        sample = self._reader.read(index, check=self._check)
        spec = self.table.spec
        states = to_torch(sample.states, spec.dtype)
        num_aux = len(spec.layers) * spec.hidden_size
        return TensorSample(
            key=sample.key,
            input_ids=torch.from_numpy(sample.token_ids).long(),
            loss_mask=torch.from_numpy(sample.loss_mask).long(),
            aux_states=states[:, :num_aux],
            last_states=states[:, num_aux:],
        )
