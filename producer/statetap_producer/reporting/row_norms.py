"""Norms of rows, by slot, over some random samples.

Norms tell a layer that was never captured, a missing final norm or an overflow at a glance; and
they show the few rows, most often the first of a prompt, whose norm is far above all others
because the model parks its attention there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec, CheckError, MissingError
from statetap_store import RunReader, Sample, SampleTable, bad_rows
from statetap_store.dtypes import as_float32

from statetap_producer.reporting.report_facts import OutlierRow, RowNorms, SlotNorms

#: A row is far from its slot's median at this multiple of it, and at this part of it.
FAR: Final = 5.0

#: Reading ends with the sample that reaches one of these: the more a row takes, the fewer rows.
_MOST_BYTES: Final = 256 << 20
_MOST_ROWS: Final = 200_000

#: Rows that are numbers of 8 bytes at the same time.
_BLOCK_ROWS: Final = 64

#: Outliers named for each slot, among first rows of samples and among others.
_MOST_FIRST: Final = 1
_MOST_OTHERS: Final = 3

_MOST_BAD: Final = 10

_SHARES: Final = (0, 0.01, 0.25, 0.5, 0.75, 0.99, 1)


@dataclass(slots=True)
class _Rows:
    """What was read so far."""

    keys: list[str] = field(default_factory=list)
    #: Of each sample: norms, float64 [rows, slots], and token ids.
    norms: list[npt.NDArray[np.float64]] = field(default_factory=list)
    token_ids: list[npt.NDArray[np.int32]] = field(default_factory=list)
    num_rows: int = 0
    bad: list[str] = field(default_factory=list)
    num_bad: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, sample: Sample, spec: CaptureSpec) -> None:
        self.keys.append(sample.key)
        self.norms.append(np.concatenate(list(_norms(sample.states, spec))))
        self.token_ids.append(sample.token_ids)
        self.num_rows += len(sample.token_ids)
        for bad in bad_rows(sample.states, spec):
            self.num_bad += 1
            if len(self.bad) < _MOST_BAD:
                self.bad.append(f"{bad} of sample {sample.key}")


def row_norms(
    table: SampleTable, num_samples: int, seed: int, on_progress: Callable[[int], None]
) -> tuple[RowNorms | None, tuple[str, ...]]:
    """Reads random samples, up to 256 MiB or 200,000 rows of them.

    Args:
        table: where they come from.
        num_samples: how many to read, at most.
        seed: chooses them: of the same samples, the same ones.
        on_progress: called with the samples read so far.

    Returns:
        The norms, None where no sample can be read; and why samples cannot, one sentence each.
    """
    rows = _Rows()
    chosen = np.random.default_rng(seed).permutation(len(table))[:num_samples].tolist()
    with RunReader(table) as reader:
        for number, place in enumerate(chosen, 1):
            try:
                rows.add(reader.read(place), table.spec)
            except (CheckError, MissingError) as error:
                rows.faults.append(error.message)
            on_progress(number)
            if rows.num_rows >= min(_MOST_ROWS, _MOST_BYTES // table.spec.row_bytes):
                break
    return _judged(rows, table.spec, seed) if rows.keys else None, tuple(rows.faults)


def _norms(states: npt.NDArray[np.generic], spec: CaptureSpec) -> Iterator[npt.NDArray[np.float64]]:
    """Norms, [rows, slots]. In 8 bytes, in which no square of a float32 overflows."""
    for start in range(0, len(states), _BLOCK_ROWS):
        values = as_float32(states[start : start + _BLOCK_ROWS], spec.dtype).astype(np.float64)
        yield np.linalg.norm(values.reshape(-1, spec.num_slots, spec.hidden_size), axis=2)


def _judged(rows: _Rows, spec: CaptureSpec, seed: int) -> RowNorms:
    norms = np.concatenate(rows.norms)
    token_ids = np.concatenate(rows.token_ids)
    lengths = [len(part) for part in rows.token_ids]
    # The sample of each row, and its place in that sample.
    samples = np.repeat(np.arange(len(lengths)), lengths)
    places = np.concatenate([np.arange(length) for length in lengths])
    slots: list[SlotNorms] = []
    outliers: list[OutlierRow] = []
    for name, values in zip(spec.slot_names, norms.T, strict=True):
        spread = _spread(values)
        factors = values / spread[3] if spread[3] else np.where(values > 0, np.inf, 1.0)
        # What is not finite is no outlier but a row that no model computed.
        is_finite = np.isfinite(values)
        is_large, is_small = is_finite & (factors > FAR), is_finite & (factors < 1 / FAR)
        is_far = is_large | is_small
        slots.append(
            SlotNorms(
                slot=name,
                quantiles=spread,
                num_large=int(is_large.sum()),
                num_small=int(is_small.sum()),
                num_first_rows=int((is_far & (places == 0)).sum()),
            )
        )
        outliers.extend(
            OutlierRow(
                slot=name,
                key=rows.keys[samples[row]],
                row=int(places[row]),
                token_id=int(token_ids[row]),
                norm=float(values[row]),
                factor=float(factors[row]),
            )
            for row in _furthest(factors, is_far, places)
        )
    return RowNorms(
        seed=seed,
        num_samples=len(rows.keys),
        num_rows=rows.num_rows,
        slots=tuple(slots),
        outliers=tuple(outliers),
        bad_rows=tuple(rows.bad),
        num_bad_rows=rows.num_bad,
    )


def _spread(
    norms: npt.NDArray[np.float64],
) -> tuple[float, float, float, float, float, float, float]:
    """The quantiles of ``SlotNorms``; not a number where no norm is finite."""
    finite = norms[np.isfinite(norms)]
    quantiles = np.quantile(finite, _SHARES) if len(finite) else np.full(len(_SHARES), np.nan)
    smallest, low, quarter, middle, three_quarters, high, largest = map(float, quantiles)
    return smallest, low, quarter, middle, three_quarters, high, largest


def _furthest(
    factors: npt.NDArray[np.float64], is_far: npt.NDArray[np.bool_], places: npt.NDArray[np.intp]
) -> Iterator[int]:
    """Rows to be named, the furthest first; a zero row is the furthest there is."""
    with np.errstate(divide="ignore"):
        distances = np.abs(np.log(factors))
    for is_wanted, most in ((places == 0, _MOST_FIRST), (places > 0, _MOST_OTHERS)):
        (rows,) = np.nonzero(is_far & is_wanted)
        in_order = rows[np.argsort(-distances[rows], kind="stable")]
        yield from islice(in_order.tolist(), most)
