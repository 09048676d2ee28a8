"""Crash-safe HDF5 shards of hidden states: writer, reader, verify. No Celery, no Redis.

The format is described in docs/format.md. For training, ``statetap_store.torch_dataset`` and
``torch_collate`` make batches of torch tensors, and ``torch_view`` turns states into tensors; they
are not imported here, so the store works without torch.
"""

from statetap_store.bad_rows import BadRow, bad_rows
from statetap_store.dtypes import storage_dtype
from statetap_store.inspection import Inspection, inspect_shards
from statetap_store.length_batch_sampler import LengthBatchSampler
from statetap_store.merge import MergeReport, merge_shards
from statetap_store.provenance import Provenance
from statetap_store.reader import ShardReader
from statetap_store.repair import repair_shard
from statetap_store.run_reader import RunReader
from statetap_store.run_scanner import RunScanner
from statetap_store.sample import Sample, SampleEntry
from statetap_store.sample_buffer import SampleBuffer
from statetap_store.sample_table import SampleTable
from statetap_store.seal_shard import seal
from statetap_store.shard_report import Fault, RepairReport, ShardReport
from statetap_store.shard_set import ShardSet
from statetap_store.verify import verify_shard
from statetap_store.verify_many import verify_shards
from statetap_store.writer import ShardFull, ShardWriter

__all__ = [
    "BadRow",
    "Fault",
    "Inspection",
    "LengthBatchSampler",
    "MergeReport",
    "Provenance",
    "RepairReport",
    "RunReader",
    "RunScanner",
    "Sample",
    "SampleBuffer",
    "SampleEntry",
    "SampleTable",
    "ShardFull",
    "ShardReader",
    "ShardReport",
    "ShardSet",
    "ShardWriter",
    "bad_rows",
    "inspect_shards",
    "merge_shards",
    "repair_shard",
    "seal",
    "storage_dtype",
    "verify_shard",
    "verify_shards",
]
