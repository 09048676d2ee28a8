"""RunReader: random access to the samples of many shards."""

import operator
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
from statetap_contract import MissingError

from statetap_store.layout import ShardLayout
from statetap_store.read_payload import check_place, read_payload, read_state_blocks, read_tokens
from statetap_store.sample import Sample, SampleEntry
from statetap_store.sample_buffer import SampleBuffer
from statetap_store.sample_table import SampleTable

#: Shards that a reader keeps open unless told otherwise. Opening one again costs some
#: microseconds, and processes may often have no more than 256 files open, or 1,024.
MAX_OPEN_SHARDS: Final = 64


class RunReader:
    """Reads samples of a table, in any order, from any thread, and also after a fork.

    Shards are opened when they are read from, and those that were not read from for longest are
    closed again. All reads are positional and go straight to the file, so the shards may be
    growing, sealed or recovered meanwhile. Pickled, a reader is one that has nothing open.

    A sample is given by its place in the table, its key, or its entry.

    Checksums are computed on every read unless ``check=False``. They take less time than any disk
    needs to deliver the bytes, and a flipped bit would be trained on without a word. Who reads
    the same samples again and again from memory may leave them out after the first time.

    Args:
        table: the samples.
        max_open_shards: shards open at once; each thread may hold one more for a moment.
    """

    def __init__(self, table: SampleTable, max_open_shards: int = MAX_OPEN_SHARDS) -> None:
        self.table = table
        self._max_open_shards = max_open_shards
        # Descriptors are closed by whoever lets go of them last: one that the cache drops while
        # another thread is reading from it stays open for that long.
        self._open = lru_cache(max_open_shards)(_open_shard)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self._max_open_shards)

    def read(self, sample: SampleEntry | SupportsIndex | str, *, check: bool = True) -> Sample:
        """Reads a sample into memory of its own.

        Args:
            sample: which one.
            check: whether to compute the checksums.

        Raises:
            CheckError: kind ``payload-corrupt``: a checksum is wrong, or bytes are missing or
                unreadable.
            MissingError: kind ``sample-missing``: the table has no sample of this key. Kind
                ``shard-missing`` or ``shard-unreachable``: its shard cannot be opened any more.
            IndexError: the table is not that long.
            ValueError: the entry is not of this table.
        """
        entry, layout = self._locate(sample)
        buffer = SampleBuffer(self.table.spec, entry.num_tokens)
        return self._fill(buffer, entry, layout, check=check)

    def read_into(
        self, sample: SampleEntry | SupportsIndex | str, buffer: SampleBuffer, *, check: bool = True
    ) -> Sample:
        """Reads a sample into ``buffer``; its arrays are views of it, nothing is copied.

        Raises:
            As ``read``; ValueError also when the buffer is too small or of another capture spec.
        """
        if buffer.spec != self.table.spec:
            raise ValueError("the buffer was made for another capture spec than the samples have")
        entry, layout = self._locate(sample)
        return self._fill(buffer, entry, layout, check=check)

    def read_prompt(
        self, sample: SampleEntry | SupportsIndex | str
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Reads a sample's token ids and loss mask, [n] each, and leaves its states alone.

        Their checksums are computed.

        Raises:
            As ``read``.
        """
        entry, layout = self._locate(sample)
        token_ids = np.empty(entry.num_tokens, "<i4")
        loss_mask = np.empty(entry.num_tokens, np.uint8)
        shard = self._open(entry.path)
        read_tokens(shard.fd, layout, entry, token_ids, loss_mask, check=True)
        return token_ids, loss_mask

    def read_blocks(
        self, sample: SampleEntry | SupportsIndex | str, buffer: npt.NDArray[np.generic]
    ) -> Iterator[npt.NDArray[np.generic]]:
        """Reads a sample's states some rows at a time, in memory that stays in a core's cache.

        Args:
            sample: which one.
            buffer: [most rows, row_width] in the storage dtype; each block is a view of it, and
                gone when the next one comes.

        Yields:
            [rows, row_width]; the checksum is proven after the last block.

        Raises:
            As ``read``.
        """
        entry, layout = self._locate(sample)
        shard = self._open(entry.path)
        yield from read_state_blocks(shard.fd, layout, entry, buffer)

    def close(self) -> None:
        """Lets go of all shards; reading opens them again."""
        self._open.cache_clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(
        self, buffer: SampleBuffer, entry: SampleEntry, layout: ShardLayout, *, check: bool
    ) -> Sample:
        sample = buffer.sample(entry.key, entry.num_tokens)
        shard = self._open(entry.path)
        read_payload(shard.fd, layout, entry, sample, check=check)
        return sample

    def _locate(self, sample: SampleEntry | SupportsIndex | str) -> tuple[SampleEntry, ShardLayout]:
        """A sample's entry, and the layout of its shard, in which it has a place."""
        if isinstance(sample, SampleEntry | str):
            place = self._place_of(sample)
        else:
            place = operator.index(sample)
        entry, layout = self.table[place], self.table.layout_of(place)
        if isinstance(sample, SampleEntry) and sample != entry:
            raise _not_listed(sample)
        check_place(layout, entry)
        return entry, layout

    def _place_of(self, sample: SampleEntry | str) -> int:
        key = sample if isinstance(sample, str) else sample.key
        place = self.table.find(key)
        if place is not None:
            return place
        if isinstance(sample, SampleEntry):
            raise _not_listed(sample)
        raise MissingError(
            "sample-missing",
            f"there is no sample {key} among the {len(self.table)} that were listed: check the "
            "key, or list the samples again if it was stored since",
        )


class _OpenShard:
    """A descriptor that is closed when nobody holds it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


def _open_shard(path: Path) -> _OpenShard:
    try:
        return _OpenShard(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError as error:
        raise MissingError(
            "shard-missing", f"{path} is gone since its samples were listed: list them again"
        ) from error
    except OSError as error:
        raise MissingError(
            "shard-unreachable",
            f"cannot open {path} any more ({error.strerror}): check its permissions and how many "
            "files a process may have open",
        ) from error


def _not_listed(entry: SampleEntry) -> ValueError:
    return ValueError(
        f"sample {entry.key}, row {entry.sequence} of {entry.path}, is not of this table"
    )
