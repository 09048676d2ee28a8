"""The samples of a run's shards, as far as they can be read, without their payloads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec, CheckError, MissingError
from statetap_store import Provenance, SampleTable
from statetap_store.header import ShardHeader
from statetap_store.index_row import is_repeated
from statetap_store.layout import token_bytes
from statetap_store.sample_table import RECORD_DTYPE
from statetap_store.shard_file import ShardFile

from statetap_producer.reporting.report_facts import Holdings, OriginFact, ShardLine

#: Fields of a shard's provenance.
_ORIGIN: Final = ("host", "sglang_version", "patch_version", "raw_layer_ids")


@dataclass(frozen=True, slots=True)
class StoredSamples:
    """The samples of all shards that can be read and are of the run's capture spec."""

    table: SampleTable
    #: One for each shard of the table.
    headers: tuple[ShardHeader, ...]
    #: Why others are left out, one sentence each.
    faults: tuple[str, ...]

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """[n], the tokens of each sample."""
        return self.table.num_tokens

    @property
    def time_ns(self) -> npt.NDArray[np.int64]:
        """[n], when each was appended, nanoseconds since 1970."""
        return self.table.records["time_ns"].astype(np.int64)

    @property
    def shard_numbers(self) -> npt.NDArray[np.int64]:
        """[n], the place of each sample's shard among the shards."""
        return self.table.records["shard"].astype(np.int64)

    @property
    def provenances(self) -> tuple[Provenance, ...]:
        """One for each shard."""
        return tuple(header.provenance for header in self.headers)

    def holdings(self) -> Holdings:
        """Their numbers."""
        num_tokens, times = int(self.num_tokens.sum()), self.time_ns
        return Holdings(
            num_samples=len(self.table),
            num_tokens=num_tokens,
            num_bytes=num_tokens * token_bytes(self.table.spec),
            num_repeated=self.table.num_duplicates,
            first_ns=int(times.min()) if len(times) else 0,
            last_ns=int(times.max()) if len(times) else 0,
        )

    def origin(self) -> tuple[OriginFact, ...]:
        """What the shards say of where they come from, beyond the names of run and worker."""
        facts = []
        for name in _ORIGIN:
            values = [getattr(part, name) for part in self.provenances]
            shown = [part if isinstance(part, str) else " ".join(map(str, part)) for part in values]
            facts.append(OriginFact(name, tuple(dict.fromkeys(filter(None, shown)))))
        return tuple(facts)

    def shard_lines(self) -> tuple[ShardLine, ...]:
        """The shards by name."""
        num_shards = len(self.headers)
        num_samples = np.bincount(self.shard_numbers, minlength=num_shards)
        num_tokens = np.zeros(num_shards, np.int64)
        np.add.at(num_tokens, self.shard_numbers, self.num_tokens)
        width = token_bytes(self.table.spec)
        return tuple(
            ShardLine(
                name=path.name,
                host=header.provenance.host,
                worker=header.provenance.worker,
                created=header.created,
                is_sealed=header.is_sealed,
                num_samples=samples,
                num_tokens=tokens,
                num_bytes=tokens * width,
            )
            for path, header, samples, tokens in zip(
                self.table.shards,
                self.headers,
                num_samples.tolist(),
                num_tokens.tolist(),
                strict=True,
            )
        )


def stored_samples(shards: list[Path], spec: CaptureSpec) -> StoredSamples:
    """Lists what is in some shards; one that cannot be read hides no other.

    Args:
        shards: by name, as readers take them.
        spec: the run's capture spec.
    """
    tables: list[SampleTable] = []
    headers: list[ShardHeader] = []
    faults: list[str] = []
    for path in shards:
        try:
            table = SampleTable.scan(path)
            with ShardFile.open_whole(path) as shard:
                header = shard.header
        except (CheckError, MissingError) as error:
            faults.append(error.message)
            continue
        if table.spec != spec:
            faults.append(
                f"{path} holds states of capture spec {table.spec.digest}, the run has "
                f"{spec.digest}; move it to a run of its own"
            )
            continue
        tables.append(table)
        headers.append(header)
    return StoredSamples(_joined(tables, spec), tuple(headers), tuple(faults))


def _joined(tables: list[SampleTable], spec: CaptureSpec) -> SampleTable:
    """One table of tables of a shard each."""
    records: Any = np.concatenate([np.empty(0, RECORD_DTYPE), *(part.records for part in tables)])
    records["shard"] = np.repeat(np.arange(len(tables)), [len(part) for part in tables])
    is_again = is_repeated(records["key"])
    firsts = records[~is_again] if is_again.any() else records
    return SampleTable(
        spec=spec,
        shards=tuple(part.shards[0] for part in tables),
        layouts=tuple(part.layouts[0] for part in tables),
        records=firsts,
        num_duplicates=int(is_again.sum()) + sum(part.num_duplicates for part in tables),
    )
