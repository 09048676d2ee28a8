"""ShardReader: the samples of one shard, readable while another process appends to it."""

from bisect import bisect_left
from pathlib import Path
from typing import Self

from statetap_contract import CaptureSpec

from statetap_store.provenance import Provenance
from statetap_store.read_payload import check_place, read_payload
from statetap_store.sample import Sample, SampleEntry
from statetap_store.sample_buffer import SampleBuffer
from statetap_store.sample_table import SampleTable
from statetap_store.shard_file import ShardFile


class ShardReader:
    """The samples that a shard had when it was opened.

    The last ones may not be committed yet, and after a crash they may be incomplete until the
    shard's writer has recovered it; ``read`` checks. Pickled, it is a reader of the same samples
    that opens the shard itself.

    Raises:
        MissingError: kind ``shard-missing``.
        CheckError: kind ``shard-truncated``, or as ``ShardHeader.decode``.
    """

    def __init__(self, path: Path) -> None:
        self._shard = ShardFile.open_whole(path)
        try:
            #: All samples, in the order in which they were appended.
            self.samples = SampleTable.of_shard(self._shard)
        except BaseException:
            self._shard.close()
            raise

    def __getstate__(self) -> tuple[Path, SampleTable]:
        return self.path, self.samples

    def __setstate__(self, state: tuple[Path, SampleTable]) -> None:
        path, self.samples = state
        self._shard = ShardFile.open_whole(path)

    @property
    def path(self) -> Path:
        return self._shard.path

    @property
    def spec(self) -> CaptureSpec:
        return self._shard.header.spec

    @property
    def provenance(self) -> Provenance:
        return self._shard.header.provenance

    @property
    def created(self) -> str:
        """When the shard was made, ISO 8601, UTC."""
        return self._shard.header.created

    @property
    def is_sealed(self) -> bool:
        return self._shard.header.is_sealed

    def read(self, entry: SampleEntry, *, check: bool = True) -> Sample:
        """Reads a sample into memory of its own.

        Args:
            entry: one of this shard's.
            check: whether to compute the checksums.

        Raises:
            CheckError: kind ``payload-corrupt``: a checksum is wrong, or bytes are missing or
                unreadable.
            ValueError: the entry is not of this shard.
        """
        self._check_entry(entry)
        layout = self._shard.header.layout
        sample = SampleBuffer(self.spec, entry.num_tokens).sample(entry.key, entry.num_tokens)
        read_payload(self._shard.fd, layout, entry, sample, check=check)
        return sample

    def close(self) -> None:
        self._shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_entry(self, entry: SampleEntry) -> None:
        """Raises ValueError for an entry of another shard, and CheckError as ``check_place``."""
        place = bisect_left(self.samples.records["sequence"], entry.sequence)
        if place == len(self.samples) or self.samples[place] != entry:
            raise ValueError(f"sample {entry.key} is not row {entry.sequence} of {self.path}")
        check_place(self._shard.header.layout, entry)
