"""ShardReader: the samples of one shard, readable while another process appends to it."""

from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import CaptureSpec, CheckError

from statetap_store.dtypes import storage_dtype
from statetap_store.file_bytes import read_into
from statetap_store.index_row import IndexRow
from statetap_store.payload import PayloadPart, fits, payload_parts
from statetap_store.provenance import Provenance
from statetap_store.sample import Sample, SampleEntry
from statetap_store.shard_file import ShardFile


class ShardReader:
    """The samples that a shard had when it was opened.

    The last ones may not be committed yet, and after a crash they may be incomplete until the
    shard's writer has recovered it; ``read`` checks.

    Raises:
        MissingError: kind ``shard-missing``.
        CheckError: kind ``shard-truncated``, or as ``ShardHeader.decode``.
    """

    def __init__(self, path: Path) -> None:
        self._shard = ShardFile.open(path)
        try:
            self._shard.check_length()
            index = self._shard.load_index()
        except BaseException:
            self._shard.close()
            raise
        self._rows = {int(row["sequence"]): IndexRow.of(row) for row in index.samples}
        #: All samples, in the order in which they were appended.
        self.samples = tuple(SampleEntry.of(row, path) for row in index.samples)

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
        ids_part, mask_part, states_part = self._parts(entry)
        token_ids = np.empty(entry.num_tokens, "<i4")
        loss_mask = np.empty(entry.num_tokens, np.uint8)
        states = np.empty((entry.num_tokens, self.spec.row_width), storage_dtype(self.spec.dtype))
        self._fill(entry, ids_part, token_ids, check=check)
        self._fill(entry, mask_part, loss_mask, check=check)
        self._fill(entry, states_part, states, check=check)
        return Sample(entry.key, token_ids, loss_mask, states)

    def read_prompt(
        self, entry: SampleEntry
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Token ids and loss mask of a sample, [num_tokens] each, without its states.

        Raises:
            CheckError, ValueError: as ``read``.
        """
        ids_part, mask_part, _ = self._parts(entry)
        token_ids = np.empty(entry.num_tokens, "<i4")
        loss_mask = np.empty(entry.num_tokens, np.uint8)
        self._fill(entry, ids_part, token_ids, check=True)
        self._fill(entry, mask_part, loss_mask, check=True)
        return token_ids, loss_mask

    def close(self) -> None:
        self._shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _parts(self, entry: SampleEntry) -> tuple[PayloadPart, ...]:
        """Where ids, mask and states of a sample lie."""
        row = self._rows.get(entry.sequence)
        if row is None or row.key != entry.key:
            raise ValueError(f"sample {entry.key} is not row {entry.sequence} of {self.path}")
        layout = self._shard.header.layout
        if not fits(layout, row):
            raise self._corrupt(entry, "lies outside the shard")
        return tuple(payload_parts(layout, row))

    def _fill(
        self, entry: SampleEntry, part: PayloadPart, array: npt.NDArray[np.generic], *, check: bool
    ) -> None:
        buffer = array.reshape(-1).view(np.uint8).data
        try:
            num_read = read_into(self._shard.fd, buffer, part.where.offset)
        except OSError as error:
            raise self._corrupt(entry, f"cannot be read ({error.strerror})") from error
        if num_read != part.where.num_bytes:
            raise self._corrupt(entry, f"has {part.name} that the file does not hold")
        if check and xxhash.xxh3_64_intdigest(buffer) != part.expected:
            raise self._corrupt(entry, f"has {part.name} that fail their checksum")

    def _corrupt(self, entry: SampleEntry, trouble: str) -> CheckError:
        return CheckError(
            "payload-corrupt",
            f"sample {entry.key} in {self.path} {trouble}: run 'statetap verify {self.path}'",
        )
