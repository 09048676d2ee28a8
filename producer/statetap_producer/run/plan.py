"""The plan: every prompt of a run, tokenised, as a Parquet file.

    key           string        sample key
    token_ids     list<int32>
    loss_spans    list<int32>   start, end, start, end … in tokens, half-open
    num_tokens    int32
    is_cut        bool          whether it was longer and only its beginning is planned
    source_file   string        file of the dataset
    source_line   int64         line, or row, in that file, from 1
    source_id     string        the row's own id, null where it has none

Rows stand in the dataset's order. Nothing in the file depends on when or where it was written, nor
on how many processes tokenised. Its pages carry checksums, which readers verify.
"""

import tempfile
from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from statetap_contract import KEY_FORM, CheckError, MissingError, Prompt

T = TypeVar("T")

#: A batch of planned prompts: a ``pyarrow.RecordBatch`` with the plan's columns.
PlanBatch = Any

#: The order in which a plan is read: as it stands, or by tokens.
Order = Literal["plan", "longest", "shortest"]


def _ints(name: str) -> Any:
    return pa.field(name, pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)


_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        _ints("token_ids"),
        _ints("loss_spans"),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("is_cut", pa.bool_(), nullable=False),
        pa.field("source_file", pa.string(), nullable=False),
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
    source_file: str
    source_line: int
    source_id: str | None
    is_cut: bool = False


def plan_batch(rows: Sequence[PlannedPrompt]) -> PlanBatch:
    """Rows as columns."""
    prompts = [row.prompt for row in rows]
    columns = [
        pa.array([row.key for row in rows], pa.string()),
        _lists([np.frombuffer(prompt.token_ids, np.int32) for prompt in prompts], "token_ids"),
        _lists([np.array(prompt.loss_spans, np.int32).ravel() for prompt in prompts], "loss_spans"),
        pa.array([prompt.num_tokens for prompt in prompts], pa.int32()),
        pa.array([row.is_cut for row in rows], pa.bool_()),
        pa.array([row.source_file for row in rows], pa.string()),
        pa.array([row.source_line for row in rows], pa.int64()),
        pa.array([row.source_id for row in rows], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _lists(values: list[Any], column: str) -> Any:
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int32)
    items = np.concatenate(values) if values else np.empty(0, np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(items), type=_SCHEMA.field(column).type
    )


class PlanWriter:
    """Writes a plan, a row group at a time, however the rows come."""

    def __init__(self, path: Path) -> None:
        self._writer: Any = pq.ParquetWriter(
            path,
            _SCHEMA,
            compression="zstd",
            # Of ids and keys a dictionary takes time and, under zstd, no fewer bytes.
            use_dictionary=["source_file"],
            write_page_checksum=True,
        )
        self._waiting: list[PlanBatch] = []
        self._num_waiting = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._num_waiting:
            self._write_groups(at_least=1)
        self._writer.close()

    def append(self, batch: PlanBatch) -> None:
        self._waiting.append(batch)
        self._num_waiting += batch.num_rows
        if self._num_waiting >= _GROUP_ROWS:
            self._write_groups(at_least=_GROUP_ROWS)

    def _write_groups(self, at_least: int) -> None:
        table = pa.Table.from_batches(self._waiting, _SCHEMA)
        start = 0
        while table.num_rows - start >= at_least:
            self._writer.write_table(table.slice(start, _GROUP_ROWS))
            start += _GROUP_ROWS
        self._waiting = table.slice(start).to_batches()
        self._num_waiting = max(table.num_rows - start, 0)


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
            column = self._checked(lambda: file.read(["key"])).column(0)
        if len(keys := set(column.to_pylist())) < len(column):
            raise self._damaged("a key stands in it twice")
        return keys

    def lengths(self) -> Any:
        """Tokens of each prompt, int32 [num_planned]."""
        with self._open() as file:
            return self._checked(lambda: file.read(["num_tokens"])).column(0).to_numpy()

    def loss_tokens(self) -> Any:
        """Tokens of each prompt that the loss is taken over, int64 [num_planned]."""
        with self._open() as file:
            column = self._checked(lambda: file.read(["loss_spans"])).column(0)
        return np.concatenate([np.empty(0, np.int64), *map(_num_in_spans, column.chunks)])

    def rows(self, order: Order = "plan") -> Iterator[PlannedPrompt]:
        """The planned prompts, never more than a row group of them in memory.

        For an order by length, the plan is first unpacked into a temporary file beside it, 4 bytes
        a token, as its rows are then read from all over it. Among prompts of one length the plan's
        own order holds.

        Raises:
            MissingError: kind ``no-room-to-sort``: that file cannot be written.
        """
        if order != "plan":
            yield from self._sorted_rows(order)
            return
        for batch in self._batches():
            yield from self._rows_in(batch)

    def rows_of(self, keys: Container[str]) -> Iterator[PlannedPrompt]:
        """The prompts of some keys, in the plan's order; only row groups with any are unpacked."""
        with self._open() as file:
            for group in range(file.num_row_groups):
                names = self._checked(lambda group=group: file.read_row_group(group, ["key"]))
                wanted = [key in keys for key in names.column(0).to_pylist()]
                if any(wanted):
                    table = self._checked(lambda group=group: file.read_row_group(group))
                    for batch in table.filter(wanted).combine_chunks().to_batches():
                        yield from self._rows_in(batch)

    def sample(self, most: int) -> list[PlannedPrompt]:
        """Up to ``most`` prompts, spread evenly over the plan."""
        with self._open() as file:
            num_rows = file.metadata.num_rows
            wanted = np.unique(np.linspace(0, num_rows - 1, min(most, num_rows)).astype(np.int64))
            groups, places = np.divmod(wanted, _GROUP_ROWS)
            chosen = []
            for group in np.unique(groups).tolist():
                table = self._checked(lambda group=group: file.read_row_group(group))
                rows = table.take(places[groups == group]).combine_chunks()
                chosen += [row for batch in rows.to_batches() for row in self._rows_in(batch)]
            return chosen

    def _batches(self) -> Iterator[PlanBatch]:
        with self._open() as file:
            for group in range(file.num_row_groups):
                table = self._checked(lambda group=group: file.read_row_group(group))
                yield from table.combine_chunks().to_batches()

    def _sorted_rows(self, order: Order) -> Iterator[PlannedPrompt]:
        lengths = self.lengths()
        indices = np.argsort(lengths if order == "shortest" else -lengths, kind="stable")
        # Has no name, so that it is gone with this process, however that ends.
        with self._room_to_sort(), tempfile.TemporaryFile(dir=self._path.parent) as unpacked:
            with pa.ipc.new_file(unpacked, _SCHEMA) as writer:
                for batch in self._batches():
                    writer.write_batch(batch)
            unpacked.flush()
            file = pa.ipc.open_file(pa.memory_map(f"/proc/self/fd/{unpacked.fileno()}"))
            batches = [file.get_batch(group) for group in range(file.num_record_batches)]
        for start in range(0, len(indices), _GROUP_ROWS):
            groups, places = np.divmod(indices[start : start + _GROUP_ROWS], _GROUP_ROWS)
            rows: dict[int, PlannedPrompt] = {}
            for group in np.unique(groups).tolist():
                (positions,) = np.nonzero(groups == group)
                found = self._rows_in(batches[group].take(pa.array(places[positions])))
                rows.update(zip(positions.tolist(), found, strict=True))
            yield from (rows[position] for position in range(len(rows)))

    @contextmanager
    def _room_to_sort(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MissingError(
                "no-room-to-sort",
                f"cannot unpack {self._path} beside itself to sort it ({error.strerror}); make "
                "room there, or take the plan's own order",
            ) from error

    def _rows_in(self, batch: PlanBatch) -> list[PlannedPrompt]:
        return self._checked(lambda: list(_rows_of(batch)))

    def _open(self) -> Any:
        return self._checked(lambda: pq.ParquetFile(self._path, page_checksum_verification=True))

    def _checked(self, read: Callable[..., T]) -> T:
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


def _rows_of(batch: PlanBatch) -> Iterator[PlannedPrompt]:
    keys, token_ids, spans, _, cuts, files, lines, ids = batch.columns
    columns = (column.to_pylist() for column in (keys, files, lines, ids, cuts))
    for key, ids_of, spans_of, (file, line, source_id, is_cut) in zip(
        next(columns), _slices(token_ids), _slices(spans), zip(*columns, strict=True), strict=True
    ):
        prompt = Prompt(
            array("i", ids_of.tobytes()),
            tuple(map(tuple, spans_of.reshape(-1, 2).tolist())),
        )
        if not KEY_FORM.fullmatch(key):
            raise ValueError(f"{key!r} is no sample key")
        yield PlannedPrompt(key, prompt, file, line, source_id, is_cut)


def _num_in_spans(spans: Any) -> Any:
    """Tokens in the spans of each list, int64: the ends less the starts."""
    bounds, offsets = spans.values.to_numpy(), spans.offsets.to_numpy()
    sums = np.cumsum(bounds[1::2].astype(np.int64) - bounds[::2])
    upto = np.concatenate([np.zeros(1, np.int64), sums])
    return np.diff(upto[offsets // 2])


def _slices(lists: Any) -> Iterator[Any]:
    """The items of each list, as views of one array."""
    items = lists.values.to_numpy()
    offsets = lists.offsets.to_pylist()
    for start, end in pairwise(offsets):
        yield items[start:end]
