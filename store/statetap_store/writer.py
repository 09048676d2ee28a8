"""ShardWriter: appends samples to one shard so that a crash at any moment loses none.

One fdatasync makes a sample durable. That is enough, without a barrier between payload and
index row, because the row carries the payload's checksums: a row that reached the disk before
its payload does not pass for a sample.
"""

import os
import time
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import CaptureSpec, CheckError, StopError

from statetap_store.disk_errors import stop_for
from statetap_store.file_bytes import start_writing_out, sync_folder, write_at
from statetap_store.header import ShardHeader
from statetap_store.index_row import STATE_SAMPLE, STATE_VOID, IndexRow, keys_of
from statetap_store.layout import ByteRange, ShardLayout
from statetap_store.provenance import Provenance
from statetap_store.publish import publish_shard, remove_leftover
from statetap_store.recover import plan_recovery, write_recovery
from statetap_store.sample_bytes import SampleBytes
from statetap_store.sealing import Seal, restore_header, write_seal
from statetap_store.shard_file import ShardFile
from statetap_store.shard_lock import ShardLock


class ShardFull(Exception):  # noqa: N818 a signal, no error
    """The shard has no room for this sample; it is unchanged, and others may still fit."""


class ShardWriter:
    """The only process that appends to a shard. Made by ``create`` or ``open``.

    After a write or a sync failed, what is on disk is no longer known. The writer then refuses
    everything but ``close``, with StopError of kind ``shard-broken``; opening the shard again
    recovers it.

    Not for use by several threads.
    """

    def __init__(self, shard: ShardFile, lock: ShardLock) -> None:
        """Recovers an open, locked shard. Use ``create`` or ``open``."""
        self._shard = shard
        self._lock = lock
        self._pending: dict[str, IndexRow] = {}
        self._is_broken = False
        self._is_closed = False
        self._recover()

    @classmethod
    def create(
        cls, path: Path, spec: CaptureSpec, provenance: Provenance, shard_bytes: int
    ) -> Self:
        """Makes an empty shard with room for ``shard_bytes`` bytes of payload.

        The room is not taken from the disk before it is used.

        Raises:
            StopError: kind ``shard-exists``, ``shard-locked`` or ``disk-full``.
        """
        created = datetime.now(UTC).isoformat(timespec="seconds")
        layout = ShardLayout.planned(spec, shard_bytes)
        header = ShardHeader(spec, provenance, created, is_sealed=False, layout=layout)
        lock = ShardLock(path)
        try:
            publish_shard(path, header)
        except BaseException:
            lock.close()
            raise
        return cls._open_locked(path, lock)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens a shard for appending, after recovering it from whatever happened to it.

        Raises:
            MissingError: kind ``shard-missing`` or ``shard-unreachable``.
            StopError: kind ``shard-locked``, ``shard-sealed``, ``header-unproven`` or
                ``shard-truncated``, or as ``ShardHeader.decode``.
        """
        try:
            # What is no shard gets no lock beside it.
            ShardFile.open(path).close()
        except CheckError as error:
            raise StopError(error.kind, error.message) from error
        return cls._open_locked(path, ShardLock(path))

    @classmethod
    def _open_locked(cls, path: Path, lock: ShardLock) -> Self:
        shard = None
        try:
            shard = ShardFile.open(path, os.O_RDWR)
            lock.hold(shard.fd)
            return cls(shard, lock)
        except BaseException as error:
            if shard is not None:
                shard.close()
            lock.close()
            if isinstance(error, CheckError):
                raise StopError(error.kind, error.message) from error
            raise

    def _recover(self) -> None:
        shard, layout = self._shard, self._shard.header.layout
        if shard.copies.proven is None:
            raise StopError(
                "header-unproven",
                f"{shard.path} has no intact copy of its header: run "
                f"'statetap repair {shard.path}' before appending to it",
            )
        shard.check_length()
        with self._writing("recover samples"):
            remove_leftover(shard.path)
            # Whoever made the shard may have been killed before its name was durable.
            sync_folder(shard.path.parent)
            restore_header(shard)
        if shard.header.is_sealed:
            raise StopError(
                "shard-sealed", f"{shard.path} is sealed: append to a new shard instead"
            )
        index = shard.load_index()
        with self._writing("recover samples"):
            recovery = plan_recovery(shard.fd, layout, index)
            write_recovery(shard.fd, layout, recovery)
            os.fdatasync(shard.fd)
        self._durable = {*keys_of(recovery.durable), *(row.key for row in recovery.proven)}
        self._num_samples = len(recovery.durable) + len(recovery.proven)
        self._num_tokens = int(recovery.durable["num_tokens"].sum())
        self._num_tokens += sum(row.num_tokens for row in recovery.proven)
        self._num_durable_rows = self._next_sequence = recovery.next_sequence
        self._next_token = recovery.next_token

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
    def keys(self) -> AbstractSet[str]:
        """Keys of committed samples; a view that grows."""
        return self._durable

    @property
    def num_samples(self) -> int:
        """Committed samples."""
        return self._num_samples

    @property
    def num_tokens(self) -> int:
        """Tokens of the committed samples."""
        return self._num_tokens

    def append(
        self,
        key: str,
        token_ids: npt.NDArray[np.int32],
        loss_mask: npt.NDArray[np.uint8],
        states: npt.NDArray[np.generic],
        states_xxh3: int | None = None,
        *,
        proof: Callable[[], None] | None = None,
    ) -> bool:
        """Writes a sample, which ``commit`` will make durable.

        Args:
            key: sample key.
            token_ids: int32 [n].
            loss_mask: uint8 [n], 1 where the loss is taken, else 0.
            states: [n, row_width] in the storage dtype, or the same bytes as uint8 in any shape;
                contiguous. Nothing is copied.
            states_xxh3: xxh3-64 of the bytes of ``states`` as computed where they were made. It
                is stored without being computed again, so it covers the whole way. None means
                that it is computed here.
            proof: called once, while the disk is at work on the states already and before they are
                a sample. Whatever it raises comes out of here, and nothing was appended.

        Returns:
            False, and nothing is done, when the shard has this key already; whether it was
            committed or is about to be, it is durable once ``commit`` returns.

        Raises:
            ShardFull: no room; the shard is unchanged.
            StopError: kind ``disk-full``: if nothing was written yet, which is the rule, the
                shard is unchanged and in order. Kind ``shard-broken`` otherwise.
            ValueError: an argument is not as described.
        """
        self._check_usable()
        if states_xxh3 is not None and not 0 <= states_xxh3 < 1 << 64:
            raise ValueError(f"states_xxh3 {states_xxh3} is no xxh3-64")
        if key in self._durable or key in self._pending:
            return False
        sample = SampleBytes.of(self.spec, key, token_ids, loss_mask, states)
        layout = self._shard.header.layout
        if (
            self._next_token + sample.num_tokens > layout.capacity_tokens
            or self._next_sequence >= layout.capacity_samples
        ):
            raise ShardFull
        tokens = self._next_token, sample.num_tokens
        states_at = layout.states(*tokens)
        ids_at, mask_at = layout.token_ids(*tokens), layout.loss_mask(*tokens)
        row_at = layout.row(self._next_sequence)
        self._reserve(
            f"store sample {key} ({sample.num_tokens} tokens)", row_at, ids_at, mask_at, states_at
        )
        with self._writing(f"write sample {key}"):
            write_at(self._shard.fd, sample.states, states_at.offset)
            if proof is not None:
                start_writing_out(self._shard.fd, states_at)
            write_at(self._shard.fd, sample.token_ids, ids_at.offset)
            write_at(self._shard.fd, sample.loss_mask, mask_at.offset)
        if proof is not None:
            # What it raises leaves bytes without a row, which are no sample: the next one is
            # written over them.
            proof()
        row = IndexRow(
            state=STATE_SAMPLE,
            key=key,
            token_offset=self._next_token,
            num_tokens=sample.num_tokens,
            states_xxh3=(
                xxhash.xxh3_64_intdigest(sample.states) if states_xxh3 is None else states_xxh3
            ),
            ids_xxh3=xxhash.xxh3_64_intdigest(sample.token_ids),
            mask_xxh3=xxhash.xxh3_64_intdigest(sample.loss_mask),
            time_ns=time.time_ns(),
            sequence=self._next_sequence,
            num_durable=self._num_durable_rows,
        )
        with self._writing(f"write sample {key}"):
            write_at(self._shard.fd, row.encode(), row_at.offset)
            self._next_token = row.token_end
            self._next_sequence += 1
            self._pending[key] = row
        return True

    def commit(self) -> None:
        """Makes all appended samples durable; only then may they be acknowledged.

        Raises:
            StopError: kind ``shard-broken`` or ``disk-full``; none of them may be acknowledged.
        """
        self._check_usable()
        if not self._pending:
            return
        with self._writing(f"sync {len(self._pending)} samples"):
            try:
                os.fdatasync(self._shard.fd)
            except OSError:
                self._withdraw()
                raise
            self._num_durable_rows = self._next_sequence
            self._durable.update(self._pending)
            self._num_samples += len(self._pending)
            self._num_tokens += sum(row.num_tokens for row in self._pending.values())
            self._pending = {}

    def seal(self) -> None:
        """Commits, gives the shard exact sizes, and closes it. Nothing can be appended after.

        Raises:
            StopError: kind ``disk-full``: nothing was written, and the shard can be appended to or
                sealed later. Kind ``shard-broken`` otherwise; no sample is lost.
        """
        self.commit()
        seal = Seal.of(self._shard.header, self._next_sequence, self._next_token)
        self._reserve("seal the shard", *seal.places)
        with self._writing("seal the shard"):
            write_seal(self._shard.fd, seal)
        self.close()

    def close(self) -> None:
        """Commits unless the writer is broken, and lets go of the shard.

        Raises:
            StopError: as ``commit``; the shard is let go of all the same.
        """
        if self._is_closed:
            return
        try:
            if not self._is_broken:
                self.commit()
        finally:
            self._is_closed = True
            self._shard.close()
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._is_broken or self._is_closed:
            trouble = "a write to it failed" if self._is_broken else "its writer was closed"
            raise StopError(
                "shard-broken", f"{self.path} takes no more samples, {trouble}: open it again"
            )

    def _withdraw(self) -> None:
        """Makes the pending rows void, as far as the disk lets it.

        The kernel marks pages clean that it failed to write, and another process would prove these
        samples from memory, find nothing left to sync, and take them for durable.
        """
        layout = self._shard.header.layout
        for row in self._pending.values():
            void = replace(row, state=STATE_VOID)
            with suppress(OSError):
                write_at(self._shard.fd, void.encode(), layout.row(row.sequence).offset)

    def _reserve(self, task: str, *places: ByteRange) -> None:
        """Takes room from the disk, so that a full disk shows before anything is written."""
        try:
            for place in places:
                os.posix_fallocate(self._shard.fd, place.offset, place.num_bytes)
        except OSError as error:
            raise stop_for(error, self.path, task) from error

    @contextmanager
    def _writing(self, task: str) -> Iterator[None]:
        """Whatever interrupts a write, a signal's exception included, breaks the writer."""
        try:
            yield
        except OSError as error:
            self._is_broken = True
            raise stop_for(error, self.path, task) from error
        except BaseException:
            self._is_broken = True
            raise
