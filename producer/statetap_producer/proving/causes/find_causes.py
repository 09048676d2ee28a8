"""From samples that are beyond the bounds to causes: tries all hypotheses on each slot."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from statetap_store import RunReader, SampleEntry
from statetap_store.torch_view import to_torch

from statetap_producer.proving.causes.cause import Cause
from statetap_producer.proving.causes.explanation import Explanation, Finding, best
from statetap_producer.proving.causes.last_resort import localise
from statetap_producer.proving.causes.layer_hypotheses import other_layers, unweighted_norm
from statetap_producer.proving.causes.layer_source import LayerSource, name_sources
from statetap_producer.proving.causes.other_samples import likely_others, rows_of_other
from statetap_producer.proving.causes.row_hypotheses import (
    not_finite,
    reordered_rows,
    repeated_rows,
    shifted_rows,
    zero_rows,
)
from statetap_producer.proving.causes.token_hypotheses import rivals
from statetap_producer.proving.causes.value_hypotheses import (
    byte_swapped,
    misread,
    other_layout,
    rounded,
    scaled,
)
from statetap_producer.proving.compared_sample import ComparedSample, JudgedSample
from statetap_producer.proving.reference_model import ReferenceModel

#: Samples that are examined; each costs some ten forward passes.
MOST_EXAMINED: Final = 8

Hypothesis = Callable[[ComparedSample, int, ReferenceModel], Iterator[Explanation]]

#: The hypotheses that need nothing but the rows, one slot and one trace. Of those that explain a
#: slot about as well, the first one is named.
_HYPOTHESES: Final[tuple[Hypothesis, ...]] = (
    not_finite,
    zero_rows,
    repeated_rows,
    shifted_rows,
    reordered_rows,
    other_layout,
    misread,
    byte_swapped,
    rounded,
    other_layers,
    unweighted_norm,
    scaled,
)


@dataclass(frozen=True, slots=True)
class FoundCause:
    """One cause of what is wrong with the samples that were examined."""

    #: One of those in ``causes.cause.ADVICE``.
    kind: str
    #: What is the case, and what to do about it.
    text: str
    advice: str
    #: Names of the slots, in row order, and keys of the samples.
    slots: tuple[str, ...]
    keys: tuple[str, ...]
    #: Whether the rows are within bounds if this is the cause. Otherwise it says where they are
    #: wrong, not why.
    is_proven: bool
    #: The largest middle row and the worst row that it leaves, in the measure of the bounds; None
    #: if not proven.
    middle_left: float | None = None
    worst_left: float | None = None


@dataclass(frozen=True, slots=True)
class _Examined:
    """A sample that is beyond the bounds, and what was found of it so far."""

    entry: SampleEntry
    #: For each slot float64 [n].
    errors: list[torch.Tensor]
    bad_slots: list[int]
    #: What explains a slot, by its number.
    findings: dict[int, Finding] = field(default_factory=dict)

    @property
    def open_slots(self) -> list[int]:
        return [slot for slot in self.bad_slots if slot not in self.findings]

    def settle(self, sample: JudgedSample, slot: int, offered: Iterable[Explanation]) -> None:
        """Takes the best explanation, if one is good enough."""
        if (finding := best(sample, slot, offered)) is not None:
            self.findings[slot] = finding


class CauseFinder:
    """Examines the samples of one comparison.

    At most one sample's states are held, with two traces of the reference.
    """

    def __init__(self, reader: RunReader, reference: ReferenceModel) -> None:
        self._reader = reader
        self._spec = reader.table.spec
        self._reference = reference
        self._examined: list[_Examined] = []

    @torch.inference_mode()
    def examine(self, compared: ComparedSample, entry: SampleEntry) -> None:
        """Tries what needs no other sample on each slot that is beyond the bounds.

        Does nothing for a sample that is within, and once ``MOST_EXAMINED`` were not.
        """
        bad_slots = compared.beyond(compared.bounds)
        if not bad_slots or len(self._examined) == MOST_EXAMINED:
            return
        examined = _Examined(entry, compared.errors, bad_slots)
        self._examined.append(examined)
        for slot in examined.bad_slots:
            examined.settle(compared, slot, self._of_rows(compared, slot))
        if open_slots := examined.open_slots:
            offered: dict[int, list[Explanation]] = {slot: [] for slot in open_slots}
            for rival in rivals(compared, self._reference):
                for slot in open_slots:
                    offered[slot].append(rival.explain(compared, slot))
            for slot in open_slots:
                examined.settle(compared, slot, offered[slot])

    @torch.inference_mode()
    def conclude(self, chosen: Sequence[SampleEntry]) -> tuple[FoundCause, ...]:
        """The causes, those first that explain most slots of most samples.

        Args:
            chosen: the samples that were compared; some may have what others should.
        """
        self._search_others(chosen)
        found: dict[Cause, list[tuple[_Examined, int]]] = {}
        for examined in self._examined:
            for slot, cause in self._name(examined).items():
                found.setdefault(cause, []).append((examined, slot))
        by_weight = sorted(found, key=lambda cause: -len(found[cause]))
        return tuple(self._summarise(cause, found[cause]) for cause in by_weight)

    def _of_rows(self, compared: ComparedSample, slot: int) -> Iterator[Explanation]:
        for hypothesis in _HYPOTHESES:
            yield from hypothesis(compared, slot, self._reference)

    def _search_others(self, chosen: Sequence[SampleEntry]) -> None:
        open_entries = [examined.entry for examined in self._examined if examined.open_slots]
        if not open_entries:
            return
        for other in likely_others(self._reader.table, open_entries, chosen):
            token_ids = torch.from_numpy(self._reader.read(other).token_ids).long()
            theirs = self._reference.slots(self._reference.trace(token_ids))
            for examined in self._examined:
                if examined.open_slots and examined.entry.key != other.key:
                    sample = self._reader.read(examined.entry)
                    states = to_torch(sample.states, self._spec.dtype)
                    judged = JudgedSample(
                        sample.key, self._spec, states, self._reference.bounds, examined.errors
                    )
                    for slot in examined.open_slots:
                        offered = rows_of_other(judged, slot, other.key, theirs[slot])
                        examined.settle(judged, slot, offered)

    def _name(self, examined: _Examined) -> dict[int, Cause]:
        """The cause of each bad slot of one sample."""
        named: dict[int, Cause] = {}
        sources: dict[int, LayerSource] = {}
        for slot, finding in examined.findings.items():
            if isinstance(finding.cause, Cause):
                named[slot] = finding.cause
            else:
                sources[slot] = finding.cause
        named |= name_sources(sources, self._spec, self._reference.num_layers)
        if open_slots := examined.open_slots:
            sample = self._reader.read(examined.entry)
            compared = ComparedSample.of(sample, self._spec, self._reference)
            named |= dict.fromkeys(open_slots, localise(compared, open_slots, self._reference))
        return named

    def _summarise(self, cause: Cause, places: Sequence[tuple[_Examined, int]]) -> FoundCause:
        slots = sorted({slot for _, slot in places})
        left = [
            examined.findings[slot].left for examined, slot in places if slot in examined.findings
        ]
        return FoundCause(
            kind=cause.kind,
            text=cause.text,
            advice=cause.advice,
            slots=tuple(self._spec.slot_names[slot] for slot in slots),
            keys=tuple(dict.fromkeys(examined.entry.key for examined, _ in places)),
            is_proven=bool(left),
            middle_left=max((errors.middle for errors in left), default=None),
            worst_left=max((errors.worst for errors in left), default=None),
        )
