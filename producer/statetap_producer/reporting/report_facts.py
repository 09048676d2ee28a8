"""What a report says of a run: a few hundred numbers, some for each worker and each shard."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from statetap_contract import DeadLetter

from statetap_producer.queueing.run_state import RunNumbers
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.run.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class Holdings:
    """The samples in the run's own shards, each key once."""

    num_samples: int
    num_tokens: int
    #: Of states, ids and masks.
    num_bytes: int
    #: Further samples in these shards with a key that is counted.
    num_repeated: int
    #: When the first and the last were appended, nanoseconds since 1970; 0 without any.
    first_ns: int
    last_ns: int

    @property
    def seconds(self) -> float:
        """From the first sample to the last, pauses included."""
        return (self.last_ns - self.first_ns) / 1e9


@dataclass(frozen=True, slots=True)
class LengthBins:
    """Tokens of prompts in equal steps: bin k has those of ``k * step + 1`` to ``(k + 1) * step``.

    The last bin also has all that are longer, where ``is_open`` says so.
    """

    step: int
    is_open: bool
    planned: tuple[int, ...]
    stored: tuple[int, ...]
    #: Of the stored samples: shortest, median, of 95% and of 99%, longest. None without any.
    quantiles: tuple[int, int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class MaskShares:
    """The part of each planned prompt's tokens that the loss is taken over."""

    #: Prompts of a share up to 5%, up to 10% and so on: 20 bins.
    bins: tuple[int, ...]
    #: Prompts without any loss, and with loss on every token.
    num_empty: int
    num_full: int
    #: Of all prompts together.
    num_loss_tokens: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TimeBins:
    """Tokens by when their sample was appended: bin k is ``interval_s`` from ``k * interval_s``."""

    #: When bin 0 begins, nanoseconds since 1970.
    begin_ns: int
    interval_s: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What one server host computed, or one worker process stored."""

    name: str
    num_samples: int
    num_tokens: int
    #: From its first sample to its last, pauses included. None where that is less than a second.
    tokens_per_s: float | None
    #: As in ``TimeBins``.
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TriedKind:
    """Tries that failed for one reason, and what became of their prompts since."""

    kind: str
    num_tries: int
    num_stored: int
    num_dead: int
    num_pending: int


@dataclass(frozen=True, slots=True)
class DeadKind:
    """Dead letters of one reason."""

    kind: str
    num_letters: int
    #: The first of them by time.
    examples: tuple[DeadLetter, ...]


@dataclass(frozen=True, slots=True)
class Failures:
    """What failed on the way, as far as the run's own files tell."""

    #: Most frequent first.
    tried: tuple[TriedKind, ...]
    dead: tuple[DeadKind, ...]
    #: Failed tries by the URL of the server that was asked.
    tries_by_server: tuple[tuple[str, int], ...]
    #: Prompts that ``rerun`` gave out again.
    num_rerun: int
    #: Lines of ``tries`` that cannot be read.
    num_unreadable: int


@dataclass(frozen=True, slots=True)
class SlotNorms:
    """Euclidean norms of one slot over the rows that were looked at."""

    slot: str
    #: Smallest, 1%, 25%, median, 75%, 99%, largest, of the rows that are finite.
    quantiles: tuple[float, float, float, float, float, float, float]
    #: Rows far above the median and far below it, as ``row_norms`` has it.
    num_large: int
    num_small: int
    #: Of both together, those that are the first row of their sample.
    num_first_rows: int


@dataclass(frozen=True, slots=True)
class OutlierRow:
    """A row of which one slot is far from the slot's median."""

    slot: str
    #: Sample key.
    key: str
    row: int
    token_id: int
    norm: float
    #: The norm as a multiple of the median.
    factor: float


@dataclass(frozen=True, slots=True)
class RowNorms:
    """Norms of the rows of some random samples."""

    seed: int
    num_samples: int
    num_rows: int
    slots: tuple[SlotNorms, ...]
    #: The furthest of each slot, first rows of samples apart from others.
    outliers: tuple[OutlierRow, ...]
    #: Rows that no model computed, one sentence each, and how many there are in all.
    bad_rows: tuple[str, ...]
    num_bad_rows: int


@dataclass(frozen=True, slots=True)
class DroppedKind:
    """Rows of the dataset left out for one reason."""

    kind: str
    num_rows: int
    #: The first of them.
    examples: tuple[RowFault, ...]


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One shard that can be read."""

    name: str
    host: str
    worker: str
    #: ISO 8601, UTC.
    created: str
    is_sealed: bool
    #: Each key once in this shard and those before it.
    num_samples: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class OriginFact:
    """What the shards say of where their samples come from, in one respect."""

    name: str
    #: All there are, each once.
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run at one moment."""

    #: UTC, ISO 8601.
    made: str
    statetap_version: str
    record: RunRecord
    numbers: RunNumbers
    holdings: Holdings
    lengths: LengthBins
    mask: MaskShares
    #: None without a sample.
    times: TimeBins | None
    #: Largest first.
    servers: tuple[Source, ...]
    workers: tuple[Source, ...]
    failures: Failures
    #: None without a sample that can be read.
    norms: RowNorms | None
    dropped: tuple[DroppedKind, ...]
    shards: tuple[ShardLine, ...]
    origin: tuple[OriginFact, ...]
    #: What is wrong with the run's files, and what of it cannot be seen from here; sentences.
    faults: tuple[str, ...]
    unseen: tuple[str, ...]


def report_json(report: RunReport) -> dict[str, object]:
    """The report as a JSON object; numbers that JSON cannot say are strings."""
    plain: dict[str, object] = _plain(asdict(report) | {"record": report.record.to_json()})
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
