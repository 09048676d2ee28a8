"""The plan: every prompt of a run, tokenised, as a Parquet file.

    key           string        sample key
    token_ids     list<int32>
    loss_spans    list<int32>   start, end, start, end … in tokens, half-open
    num_tokens    int32
    source_line   int64         line in the dataset, from 1
    source_id     string        the row's own id, null where it has none

Rows stand in the dataset's order. Nothing in the file depends on when or where it was written.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from statetap_contract import CheckError, MissingError, Prompt

_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.field("item", pa.int32(), nullable=False)), False),
        pa.field("loss_spans", pa.list_(pa.field("item", pa.int32(), nullable=False)), False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("source_line", pa.int64(), nullable=False),
        pa.field("source_id", pa.string()),
    ]
)

#: Rows held in memory at a time, by writer and readers.
_GROUP_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One row of a plan."""

    key: str
    prompt: Prompt
    source_line: int
    source_id: str | None


class PlanWriter:
    """Writes a plan, a row group at a time."""

    def __init__(self, path: Path) -> None:
        self._writer: Any = pq.ParquetWriter(path, _SCHEMA, compression="zstd")
        self._rows: list[PlannedPrompt] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._rows:
            self._write_group()
        self._writer.close()

    def append(self, row: PlannedPrompt) -> None:
        self._rows.append(row)
        if len(self._rows) == _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        rows, self._rows = self._rows, []
        prompts = [row.prompt for row in rows]
        columns = [
            pa.array([row.key for row in rows], pa.string()),
            _lists([np.frombuffer(prompt.token_ids, np.int32) for prompt in prompts], 1),
            _lists([np.array(prompt.loss_spans, np.int32).ravel() for prompt in prompts], 2),
            pa.array([prompt.num_tokens for prompt in prompts], pa.int32()),
            pa.array([row.source_line for row in rows], pa.int64()),
            pa.array([row.source_id for row in rows], pa.string()),
        ]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))


def _lists(values: list[Any], column: int) -> Any:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(np.concatenate(values)), type=_SCHEMA.field(column).type
    )


class Plan:
    """Reads a plan.

    Args:
        path: the Parquet file.
        num_planned: rows that the run record counts.

    Raises:
        MissingError: kind ``plan-missing``.
        CheckError: kind ``plan-damaged``; this and what reading it later finds.
    """

    def __init__(self, path: Path, num_planned: int) -> None:
        self._path = path
        if not path.is_file():
            raise MissingError(
                "plan-missing",
                f"{path} is gone; move run.json away and plan again, the same dataset and model "
                "give the same plan",
            )
        with self._open() as file:
            if file.schema_arrow != _SCHEMA or file.metadata.num_rows != num_planned:
                raise self._damaged("it does not fit the run.json beside it")

    def keys(self) -> set[str]:
        """All sample keys."""
        with self._open() as file:
            return set(self._checked(lambda: file.read(["key"])).column(0).to_pylist())

    def rows(self) -> Iterator[PlannedPrompt]:
        """The planned prompts in order, never more than a row group in memory."""
        with self._open() as file:
            for group in range(file.num_row_groups):
                yield from self._checked(lambda group=group: _rows_of(file.read_row_group(group)))

    def _open(self) -> Any:
        return self._checked(lambda: pq.ParquetFile(self._path))

    def _checked(self, read: Any) -> Any:
        try:
            return read()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(str(error).splitlines()[0]) from error

    def _damaged(self, why: str) -> CheckError:
        return CheckError(
            "plan-damaged",
            f"{self._path} cannot be used: {why}; move run.json and plan.parquet away and plan "
            "again",
        )


def _rows_of(group: Any) -> list[PlannedPrompt]:
    keys, token_ids, spans, _, lines, ids = group.combine_chunks().columns
    return [
        PlannedPrompt(
            key=key,
            prompt=Prompt(
                array("i", token_ids[i].values.to_numpy().tobytes()),
                tuple(map(tuple, spans[i].values.to_numpy().reshape(-1, 2).tolist())),
            ),
            source_line=line,
            source_id=source_id,
        )
        for i, (key, line, source_id) in enumerate(
            zip(keys.to_pylist(), lines.to_pylist(), ids.to_pylist(), strict=True)
        )
    ]
