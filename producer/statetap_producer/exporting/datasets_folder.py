"""Token ids and masks as a folder that ``datasets`` loads from disk, written row by row."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value
from datasets.utils.logging import disable_progress_bar
from statetap_store import RunReader

from statetap_producer.exporting.new_file import NewFile, disk_errors_of

#: All rows are in this file, by the library's own rule for names.
ROWS_FILE: Final = "data-00000-of-00001.arrow"
STATE_FILE: Final = "state.json"
INFO_FILE: Final = "dataset_info.json"

_FEATURES: Final = Features(
    {
        "input_ids": List(Value("int64")),
        "loss_mask": List(Value("int64")),
        "seq_len": Value("int64"),
    }
)
#: Tokens of the rows that are held in memory at a time.
_BATCH_TOKENS: Final = 1 << 20


def write_rows(reader: RunReader, file: NewFile) -> None:
    """Writes a row for each sample of a reader's table.

    Raises:
        CheckError: kind ``payload-corrupt``.
        OSError: the disk fails.
    """
    sink = pa.PythonFile(file, "w")
    with disk_errors_of(file), pa.ipc.new_stream(sink, _FEATURES.arrow_schema) as stream:
        for batch in _batches(reader):
            stream.write_batch(batch)


def _batches(reader: RunReader) -> Iterator[pa.RecordBatch]:
    num_tokens = reader.table.num_tokens
    # The batch that each sample falls into, by its last token.
    batches = np.cumsum(num_tokens) // _BATCH_TOKENS
    starts = np.flatnonzero(np.diff(batches, prepend=-1)).tolist()
    for start, end in zip(starts, [*starts[1:], len(num_tokens)], strict=True):
        prompts = [reader.read_prompt(place) for place in range(start, end)]
        offsets = np.zeros(len(prompts) + 1, np.int32)
        np.cumsum(num_tokens[start:end], out=offsets[1:])
        columns = [
            pa.ListArray.from_arrays(offsets, np.concatenate(arrays).astype(np.int64))
            for arrays in zip(*prompts, strict=True)
        ]
        yield pa.record_batch(
            [*columns, pa.array(num_tokens[start:end])], schema=_FEATURES.arrow_schema
        )


def describe_rows(fingerprint: str) -> dict[str, bytes]:
    """The folder's other files by name, as the library writes them beside such rows.

    Loaded, rows are torch tensors.

    Args:
        fingerprint: what stands for the content, in the library's caches too.
    """
    disable_progress_bar()
    empty = Dataset(_FEATURES.arrow_schema.empty_table(), fingerprint=fingerprint)
    with tempfile.TemporaryDirectory() as folder:
        empty.with_format("torch").save_to_disk(folder, num_shards=1)
        state = json.loads((Path(folder) / STATE_FILE).read_bytes())
        if [file["filename"] for file in state["_data_files"]] != [ROWS_FILE]:
            raise AssertionError(f"datasets names its files anew: {state['_data_files']}")
        return {name: (Path(folder) / name).read_bytes() for name in (STATE_FILE, INFO_FILE)}
