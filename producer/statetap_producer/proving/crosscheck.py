"""Compares stored states with those that HF transformers computes from the same token ids."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from statetap_contract import CheckError
from statetap_store import RunReader, SampleEntry, SampleTable

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.find_causes import CauseFinder, FoundCause
from statetap_producer.proving.compared_sample import ComparedSample
from statetap_producer.proving.reference_model import ReferenceModel
from statetap_producer.proving.row_bounds import RowBounds
from statetap_producer.proving.slot_tally import SlotErrors, SlotTally
from statetap_producer.run.run_folder import shards_at


@dataclass(frozen=True, slots=True)
class CrosscheckOutcome:
    """What the comparison found."""

    dtype: str
    #: What each slot of each sample must keep.
    bounds: RowBounds
    #: Sample keys looked at, and their tokens.
    keys: tuple[str, ...]
    num_tokens: int
    #: In row order.
    slots: tuple[SlotErrors, ...]
    #: Share of rows whose last hidden state makes the LM head choose the reference's next token.
    next_token_agreement: float
    #: Keys of the samples that are beyond the bounds in some slot.
    bad_keys: tuple[str, ...]
    #: Why, the likeliest first; empty if all is good.
    causes: tuple[FoundCause, ...]

    @property
    def is_good(self) -> bool:
        return not self.bad_keys


@dataclass(frozen=True, slots=True)
class CrosscheckRequest:
    """What a person asks of a comparison."""

    #: A shard, a folder of shards or a run folder.
    path: Path
    model: Path
    num_samples: int
    seed: int
    #: Of every row; None for the bounds of the states' dtype.
    bound: float | None


def crosscheck(request: CrosscheckRequest, on_progress: Callable[[int], None]) -> CrosscheckOutcome:
    """Compares random samples with the reference, and looks for the cause where they differ.

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
    bounds = reference.bounds
    if request.bound is not None:
        bounds = RowBounds.same(bounds.measure, request.bound)
    tally = SlotTally(spec)
    num_agreeing = 0
    bad = []
    with RunReader(table) as reader:
        finder = CauseFinder(reader, reference)
        for number, entry in enumerate(entries, 1):
            compared = ComparedSample.of(reader.read(entry), spec, reference)
            beyond = compared.beyond(bounds)
            tally.add(compared, beyond)
            num_agreeing += _num_agreeing(compared, reference)
            if beyond:
                bad.append(entry)
                finder.examine(compared, entry)
            on_progress(number)
        causes = finder.conclude(entries)
    bad_keys = tuple(entry.key for entry in bad)
    if bad and not causes:
        causes = (_strict_bound(bad_keys),)
    num_tokens = sum(entry.num_tokens for entry in entries)
    return CrosscheckOutcome(
        dtype=spec.dtype,
        bounds=bounds,
        keys=tuple(entry.key for entry in entries),
        num_tokens=num_tokens,
        slots=tally.slots(),
        next_token_agreement=num_agreeing / num_tokens,
        bad_keys=bad_keys,
        causes=causes,
    )


def _choose(table: SampleTable, request: CrosscheckRequest) -> list[SampleEntry]:
    """Samples chosen by key, so that the seed means the same however they are spread."""
    by_key = np.argsort(table.records["key"]).tolist()
    num_samples = min(request.num_samples, len(by_key))
    chosen = random.Random(request.seed).sample(by_key, num_samples)  # noqa: S311 - no secret
    return [table[place] for place in chosen]


@torch.inference_mode()
def _num_agreeing(compared: ComparedSample, reference: ReferenceModel) -> int:
    """Rows that make the LM head choose the same next token as the reference's."""
    last = len(compared.theirs) - 1
    ours, theirs = (
        reference.next_tokens(rows) for rows in (compared.ours(last), compared.theirs[last])
    )
    return sum(int((a == b).sum()) for a, b in zip(ours, theirs, strict=True))


def _strict_bound(keys: tuple[str, ...]) -> FoundCause:
    cause = Cause("bound-strict", "the states keep the bounds of their dtype, not the one given")
    return FoundCause(cause.kind, cause.text, cause.advice, (), keys, is_proven=True)
