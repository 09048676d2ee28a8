"""SampleTable: the list of the samples of many shards, as arrays."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Self, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec, CheckError, MissingError

from statetap_store.find_shards import find_shards
from statetap_store.index_row import ROW_DTYPE, IndexRow, Rows, is_repeated
from statetap_store.layout import ShardLayout
from statetap_store.payload import is_payload_intact
from statetap_store.sample import SampleEntry
from statetap_store.shard_file import ShardFile, unreadable

#: What is kept of a sample's index row.
_KEPT: Final = (
    *("key", "token_offset", "sequence", "time_ns"),
    *("states_xxh3", "ids_xxh3", "mask_xxh3", "num_tokens"),
)

#: A sample in 88 bytes: those fields, and the number of its shard.
RECORD_DTYPE: Final = np.dtype(
    [*((name, ROW_DTYPE[name]) for name in _KEPT), ("shard", "<u4")], align=True
)


@dataclass(frozen=True, eq=False)
class SampleTable(Sequence[SampleEntry]):
    """The samples of some shards at one moment, in a fixed order: by shard, then by row.

    About 90 bytes a sample, 100 once samples were looked up by key. Pickled, it is the same list
    in another process, whatever was appended since.

    Nothing that is listed is ever moved: a table stays right while its shards grow and are sealed.
    A sample at the end of a shard that was never synced may still go, with a power loss or a
    failed disk, and ``repair`` may give samples up; others may take their tokens then. Readers
    notice by the checksums, and with ``check=False`` they do not: list the samples again after
    a shard was recovered or repaired.
    """

    #: The capture spec of all samples.
    spec: CaptureSpec
    #: The shards, in the order of their numbers, and where the parts of each lie.
    shards: tuple[Path, ...]
    layouts: tuple[ShardLayout, ...]
    #: [n] of ``RECORD_DTYPE``.
    records: Rows
    #: Further samples in the shards with a key that is listed.
    num_duplicates: int

    @classmethod
    def scan(cls, *paths: str | os.PathLike[str]) -> Self:
        """Lists the samples of shards, folders of shards and run folders, in any mixture.

        Shards are those of ``find_shards``, in its order. Of samples with the same key the first
        one is listed. Those at the end of an unsealed shard, which its writer may not have
        committed, are listed only if their payload is proven right now.

        Raises:
            MissingError: kind ``no-shards``: there is no shard in any of the paths. Kind
                ``shard-missing``, ``shard-unreachable`` or ``folder-unreachable``: a path is not
                there, or may not be read.
            CheckError: kind ``spec-mismatch``: two shards have different capture specs; or a
                shard cannot be read, kinds ``shard-truncated``, ``shard-unreadable`` and those
                of ``ShardHeader.decode``.
        """
        shards = [path.absolute() for path in find_shards(*map(Path, paths))]
        if not shards:
            where = ", ".join(map(str, paths)) or "no path"
            raise MissingError(
                "no-shards",
                f"there is no shard in {where}: name shard files, folders of shards, or run "
                "folders in which a worker has stored samples",
            )
        headers = []
        pieces = []
        for number, path in enumerate(shards):
            with ShardFile.open_whole(path) as shard:
                headers.append(shard.header)
                if shard.header.spec != headers[0].spec:
                    raise CheckError(
                        "spec-mismatch",
                        f"{path} and {shards[0]} hold states of different capture specs: give "
                        "every capture spec a run folder of its own",
                    )
                pieces.append(_records(_proven_samples(shard), number))
        records = np.concatenate(pieces)
        is_again = is_repeated(records["key"])
        # Copying a million records takes as long as listing them.
        firsts = records[~is_again] if is_again.any() else records
        return cls(
            spec=headers[0].spec,
            shards=tuple(shards),
            layouts=tuple(header.layout for header in headers),
            records=firsts,
            num_duplicates=len(records) - len(firsts),
        )

    @classmethod
    def of_shard(cls, shard: ShardFile) -> Self:
        """All samples of an open shard, proven or not, and keys as often as they are there.

        Raises:
            CheckError: kind ``shard-unreadable``.
        """
        records = _records(shard.load_index().samples, 0)
        return cls(shard.header.spec, (shard.path,), (shard.header.layout,), records, 0)

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: SupportsIndex) -> SampleEntry: ...
    @overload
    def __getitem__(self, index: slice) -> list[SampleEntry]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> SampleEntry | list[SampleEntry]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        record = self.records[index]
        return SampleEntry.of(record, self.shards[record["shard"]])

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """[n], the tokens of each sample."""
        return self.records["num_tokens"].astype(np.int64)

    def layout_of(self, index: int) -> ShardLayout:
        """The layout of the shard that a sample is in."""
        return self.layouts[int(self.records["shard"][index])]

    def find(self, key: str) -> int | None:
        """The place in this list of the sample with a key, None where it is not listed."""
        keys, order = self.records["key"], self._by_key
        wanted = np.array(key.encode(), keys.dtype)
        position = np.searchsorted(keys, wanted, sorter=order)
        if position == len(order):
            return None
        # A key that is too long was cut above, so what is found is compared whole.
        place = int(order[position])
        return place if self[place].key == key else None

    @cached_property
    def _by_key(self) -> npt.NDArray[np.intp]:
        """The places of all samples by key; of equal keys the first one first."""
        return np.argsort(self.records["key"], kind="stable")


def _proven_samples(shard: ShardFile) -> Rows:
    """The rows of all samples but those that a crash may have left half-written."""
    index = shard.load_index()
    samples = index.samples
    try:
        half_written = [
            place
            for place in np.flatnonzero(samples["sequence"] >= index.num_durable).tolist()
            if not is_payload_intact(shard.fd, shard.header.layout, IndexRow.of(samples[place]))
        ]
    except OSError as error:
        raise unreadable(shard.path, error) from error
    return np.delete(samples, half_written) if half_written else samples


def _records(samples: Rows, shard: int) -> Rows:
    """Records of rows of shard number ``shard``."""
    records = np.empty(len(samples), RECORD_DTYPE)
    for name in _KEPT:
        records[name] = samples[name]
    records["shard"] = shard
    return records
