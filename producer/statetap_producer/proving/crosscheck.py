"""Compares stored states with those that HF transformers computes from the same token ids."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from statetap_contract import CaptureSpec, CheckError
from statetap_store import RunReader, Sample, SampleEntry, SampleTable
from statetap_store.torch_view import to_torch

from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.run.run_folder import shards_at

#: Names of the two measures a bound is set on.
ABSOLUTE: Final = "absolute difference"
RELATIVE: Final = "relative row error"

#: What is bounded for each dtype, and the bound.
#:
#: float32: rows equal the reference's exactly, or to some 2e-5 where another kernel (a cache, a
#: chunk, tensor parallelism) adds up in another order.
#:
#: bfloat16 and float16: an absolute bound means nothing, since some models have single elements
#: in the thousands. ||ours - reference|| / ||reference|| of a row does not depend on scale, and
#: grows with the unit roundoff u: 2^-8 and 2^-11. The bound is 50 u. Of all 51,542 rows of the
#: example dataset in SmolLM2-135M the worst is off by 48 u in bfloat16. With rows of a neighbouring
#: layer or token, the middle row alone is off by 230 u (benchmarks/rounding.py, decision note 6).
BOUNDS: Final = {
    "float32": (ABSOLUTE, 1e-4),
    "bfloat16": (RELATIVE, 50 * 2.0**-8),
    "float16": (RELATIVE, 50 * 2.0**-11),
}


@dataclass(frozen=True, slots=True)
class SlotErrors:
    """The worst of one slot, over all rows of all samples looked at."""

    slot: str
    max_absolute: float
    #: Largest ||ours - reference|| / ||reference|| of a row.
    max_relative: float
    #: Smallest cosine between a row and its reference.
    min_cosine: float


@dataclass(frozen=True, slots=True)
class CrosscheckOutcome:
    """What the comparison found."""

    dtype: str
    #: ``ABSOLUTE`` or ``RELATIVE``, and the bound on it.
    measure: str
    bound: float
    #: Sample keys looked at, and their tokens.
    keys: tuple[str, ...]
    num_tokens: int
    #: In row order.
    slots: tuple[SlotErrors, ...]
    #: Share of rows whose last hidden state makes the LM head choose the reference's next token.
    next_token_agreement: float

    def worst_of(self, slot: SlotErrors) -> float:
        """The slot's value that the bound is on."""
        return slot.max_absolute if self.measure == ABSOLUTE else slot.max_relative

    def is_within(self, slot: SlotErrors) -> bool:
        """Whether the slot keeps the bound; one that is not a number does not."""
        return self.worst_of(slot) <= self.bound

    @property
    def is_good(self) -> bool:
        return all(map(self.is_within, self.slots))


@dataclass(frozen=True, slots=True)
class CrosscheckRequest:
    """What a person asks of a comparison."""

    #: A shard, a folder of shards or a run folder.
    path: Path
    model: Path
    num_samples: int
    seed: int
    #: None for the one of the states' dtype.
    bound: float | None


def crosscheck(request: CrosscheckRequest, on_progress: Callable[[int], None]) -> CrosscheckOutcome:
    """Compares random samples with the reference.

    Args:
        request: what to compare.
        on_progress: called with the number of samples compared so far.

    Raises:
        CheckError: kind ``no-samples``, or what listing and reading samples finds.
        MissingError: the path is not there.
        StatetapError: what ``ReferenceModel`` raises.
    """
    shards = shards_at(request.path)
    table = SampleTable.scan(*shards) if shards else None
    if not table:
        raise CheckError("no-samples", f"{request.path} holds no samples to compare")
    entries = _choose(table, request)
    spec = table.spec
    reference = ReferenceModel(request.model, spec)
    worst = _Worst(spec)
    with RunReader(table) as reader:
        for number, entry in enumerate(entries, 1):
            worst.add(reader.read(entry), reference)
            on_progress(number)
    measure, bound = BOUNDS[spec.dtype]
    return CrosscheckOutcome(
        dtype=spec.dtype,
        measure=measure,
        bound=bound if request.bound is None else request.bound,
        keys=tuple(entry.key for entry in entries),
        num_tokens=worst.num_rows,
        slots=worst.slots(),
        next_token_agreement=worst.num_agreeing / worst.num_rows,
    )


def _choose(table: SampleTable, request: CrosscheckRequest) -> list[SampleEntry]:
    """Samples chosen by key, so that the seed means the same however they are spread."""
    by_key = np.argsort(table.records["key"]).tolist()
    num_samples = min(request.num_samples, len(by_key))
    chosen = random.Random(request.seed).sample(by_key, num_samples)  # noqa: S311 - no secret
    return [table[place] for place in chosen]


class _Worst:
    """The worst errors so far."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._absolute = [0.0] * spec.num_slots
        self._relative = [0.0] * spec.num_slots
        self._cosine = [1.0] * spec.num_slots
        self.num_rows = 0
        self.num_agreeing = 0

    @torch.inference_mode()
    def add(self, sample: Sample, reference: ReferenceModel) -> None:
        """Takes the rows of one sample into account."""
        token_ids = torch.from_numpy(sample.token_ids).long()
        stored = to_torch(sample.states, self._spec.dtype).float()
        ours = torch.split(stored, self._spec.hidden_size, dim=1)
        theirs = reference.slots(token_ids)
        for slot, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            self._compare(slot, a.double(), b.double())
        pairs = zip(reference.next_tokens(ours[-1]), reference.next_tokens(theirs[-1]), strict=True)
        self.num_agreeing += sum(int((a == b).sum()) for a, b in pairs)
        self.num_rows += len(token_ids)

    def _compare(self, slot: int, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        difference = ours - theirs
        norms = theirs.norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
        cosine = torch.nn.functional.cosine_similarity(ours, theirs, dim=1)
        for worst, value in (
            (self._absolute, difference.abs().max()),
            (self._relative, (difference.norm(dim=1) / norms).max()),
        ):
            worst[slot] = _worse(worst[slot], float(value), max)
        self._cosine[slot] = _worse(self._cosine[slot], float(cosine.min()), min)

    def slots(self) -> tuple[SlotErrors, ...]:
        columns = zip(
            self._spec.slot_names, self._absolute, self._relative, self._cosine, strict=True
        )
        return tuple(SlotErrors(*column) for column in columns)


def _worse(known: float, new: float, choose: Callable[[float, float], float]) -> float:
    """The worse of two; not a number is worst, and ``max`` alone would lose it."""
    return math.nan if math.isnan(known) or math.isnan(new) else choose(known, new)
