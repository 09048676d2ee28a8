"""Crash-safe HDF5 shards of hidden states: writer, reader, verify. No Celery, no Redis.

The format is described in docs/format.md. ``statetap_store.torch_view`` turns states into torch
tensors; it is not imported here, so the store works without torch.
"""

from statetap_store.bad_rows import BadRow, bad_rows
from statetap_store.dtypes import storage_dtype
from statetap_store.header import FORMAT_VERSION
from statetap_store.provenance import Provenance
from statetap_store.reader import ShardReader
from statetap_store.run_scanner import RunScanner
from statetap_store.sample import Sample, SampleEntry
from statetap_store.scan import RunIndex, scan_run
from statetap_store.seal_shard import seal
from statetap_store.shard_report import Fault, ShardReport
from statetap_store.shard_set import ShardSet
from statetap_store.verify import verify_shard
from statetap_store.writer import ShardFull, ShardWriter

__all__ = [
    "FORMAT_VERSION",
    "BadRow",
    "Fault",
    "Provenance",
    "RunIndex",
    "RunScanner",
    "Sample",
    "SampleEntry",
    "ShardFull",
    "ShardReader",
    "ShardReport",
    "ShardSet",
    "ShardWriter",
    "bad_rows",
    "scan_run",
    "seal",
    "storage_dtype",
    "verify_shard",
]
