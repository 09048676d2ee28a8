"""``samples.jsonl``: which samples an export has, in its order."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CheckError, UsageError
from statetap_store import SampleTable

from statetap_producer.exporting.split import is_held_out
from statetap_producer.terminal.counted import counted

SAMPLES_FILE: Final = "samples.jsonl"

#: A key does not tell states apart: a model changed in place keeps its revision.
_IDENTITY: Final = ("key", "num_tokens", "ids_xxh3", "mask_xxh3", "states_xxh3")


def in_export_order(table: SampleTable, val_fraction: float) -> tuple[SampleTable, int]:
    """The same samples, those for training first, else as they were; and how many these are."""
    keys = table.records["key"].tolist()
    is_val = np.array([is_held_out(key.decode(), val_fraction) for key in keys], np.bool_)
    order = np.argsort(is_val, kind="stable")
    return replace(table, records=table.records[order]), len(keys) - int(is_val.sum())


def samples_digest(table: SampleTable) -> str:
    """32 hex digits that stand for the samples, their payloads and their order."""
    digest = hashlib.blake2b(digest_size=16)
    for name in _IDENTITY:
        digest.update(table.records[name].tobytes())
    return digest.hexdigest()


def sample_lines(table: SampleTable, names: Iterable[str]) -> Iterator[bytes]:
    """A JSON object for each sample, as a line: its key, tokens and file."""
    for entry, name in zip(table, names, strict=True):
        line = {"key": entry.key, "num_tokens": entry.num_tokens, "file": name}
        yield json.dumps(line, separators=(",", ":")).encode() + b"\n"


def listed_samples(path: Path, table: SampleTable) -> SampleTable:
    """The samples of a table that a list names, in its order.

    Raises:
        CheckError: kind ``export-damaged``: the list cannot be read.
        UsageError: kind ``export-differs``: the table lacks one of them.
    """
    keys = _read_keys(path)
    stored = table.records["key"]
    order = np.argsort(stored)
    places = order[np.searchsorted(stored, keys, sorter=order).clip(max=len(order) - 1)]
    if (is_missing := stored[places] != keys).any():
        raise UsageError(
            "export-differs",
            f"{path.parent} holds an export with {counted(int(is_missing.sum()), 'sample')} that "
            f"are not stored here, {keys[is_missing][0].decode()} among them: extract what was "
            "lost again with statetap enqueue, or give another folder to --out",
        )
    return replace(table, records=table.records[places], num_duplicates=0)


def _read_keys(path: Path) -> npt.NDArray[np.bytes_]:
    try:
        with path.open("rb") as stream:
            keys = np.fromiter((json.loads(line)["key"].encode() for line in stream), "S32")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckError(
            "export-damaged",
            f"{path} cannot be read ({error}): delete {path.parent} and export anew",
        ) from error
    return keys
