"""ShardSet: the shards of one run folder, as one worker process sees them."""

from collections.abc import Callable
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec, StopError

from statetap_store.late_sample import make_durable
from statetap_store.layout import token_bytes
from statetap_store.provenance import Provenance
from statetap_store.publish import make_folder
from statetap_store.run_scanner import RunScanner
from statetap_store.shard_names import is_writer_name, shard_name, shard_paths, shard_sequence
from statetap_store.writer import ShardFull, ShardWriter


class ShardSet:
    """Appends to shards named ``<writer_name>-<sequence>.h5``, one after another.

    On construction the writer's newest shard is opened and recovered, if it can take samples of
    this provenance. A new one is made when the first sample asks for it. A full shard is sealed.

    No two live processes may have the same writer name; the second one is refused as soon as
    both want the same shard. Not for use by several threads.

    Args:
        folder: where the run's shards lie; made if only it is missing.
        writer_name: letters, digits, dots, dashes and underscores.
        shard_bytes: payload at which a shard is full. A sample larger than that gets a shard of
            its own size.
        spec: the run's capture spec.
        provenance: goes into every new shard.

    Raises:
        MissingError: kind ``folder-missing``.
        StopError: kind ``spec-mismatch``, a shard in the folder has another capture spec; any
            kind of ``ShardWriter.open``, or why another shard cannot be read.
        ValueError: the writer name has another form.
    """

    def __init__(
        self,
        folder: Path,
        writer_name: str,
        shard_bytes: int,
        spec: CaptureSpec,
        provenance: Provenance,
    ) -> None:
        if not is_writer_name(writer_name):
            raise ValueError(f"writer name {writer_name!r} cannot be part of a file name")
        self._folder = folder
        self._writer_name = writer_name
        self._shard_bytes = shard_bytes
        self._spec = spec
        self._provenance = provenance
        self._next_sequence = 1
        self._writer: ShardWriter | None = None
        self._others = RunScanner(folder)
        make_folder(folder)
        self._open_newest()

    def __contains__(self, key: object) -> bool:
        """Whether a sample is durably stored, by this writer or another one in the folder.

        Others may be appending: what they have written meanwhile is looked up.

        Raises:
            MissingError, StopError: kinds of ``make_durable``.
        """
        if not isinstance(key, str):
            return False
        if self._writer is not None and key in self._writer.keys:
            return True
        if self._others.has_durable(key):
            return True
        self._others.refresh(leave_out=self._own)
        return self._is_stored_elsewhere(key)

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
        """Writes a sample as ``ShardWriter.append`` does, to a new shard if the newest is full.

        Returns:
            False when the key is stored already.

        Raises:
            StopError: kinds of ``ShardWriter.append``, ``create`` and ``seal``.
            ValueError: an argument has another form than described there.
        """

        def append(writer: ShardWriter) -> bool:
            return writer.append(key, token_ids, loss_mask, states, states_xxh3, proof=proof)

        if self._is_stored_elsewhere(key):
            return False
        if self._writer is not None:
            try:
                return append(self._writer)
            except ShardFull:
                self.seal()
        self._writer = self._create(token_ids.size)
        return append(self._writer)

    def commit(self) -> None:
        """Makes all appended samples durable; only then may they be acknowledged.

        Raises:
            StopError: as ``ShardWriter.commit``.
        """
        if self._writer is not None:
            self._writer.commit()

    def seal(self) -> None:
        """Commits and seals the newest shard; the next sample starts another.

        Raises:
            StopError: as ``ShardWriter.seal``.
        """
        if self._writer is not None:
            self._writer.seal()
            self._writer = None
            self._others.refresh()

    def close(self) -> None:
        """Commits and lets go of the newest shard, which is continued next time.

        Raises:
            StopError: as ``ShardWriter.commit``.
        """
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_stored_elsewhere(self, key: str) -> bool:
        if key not in self._others.keys:
            return False
        # A sample that its writer may not have committed is proven and synced from here, because
        # whoever asks is about to acknowledge it.
        return self._others.has_durable(key) or any(
            make_durable(path, key) for path in self._others.late_in(key)
        )

    @property
    def _own(self) -> Path | None:
        """The shard that is being appended to, whose writer knows best what it holds."""
        return self._writer.path if self._writer is not None else None

    def _open_newest(self) -> None:
        own = [
            (sequence, path)
            for path in shard_paths(self._folder)
            if (sequence := shard_sequence(path.name, self._writer_name)) is not None
        ]
        if own:
            newest, path = max(own)
            self._next_sequence = newest + 1
            self._writer = _open_unsealed(path)
        try:
            if self._writer is not None and self._writer.spec != self._spec:
                raise _spec_mismatch(self._writer.path, self._writer.spec, self._spec)
            self._look_at_others()
            if self._writer is not None and self._writer.provenance != self._provenance:
                # Its attributes would say something untrue about new samples.
                self.seal()
        except BaseException:
            self.close()
            raise

    def _look_at_others(self) -> None:
        """Raises StopError where it cannot be known what is stored, or for another's shard."""
        self._others.refresh(leave_out=self._own)
        for error in self._others.unreadable.values():
            raise StopError(error.kind, error.message) from error
        for path, spec in self._others.specs.items():
            if spec != self._spec:
                raise _spec_mismatch(path, spec, self._spec)

    def _create(self, num_tokens: int) -> ShardWriter:
        path = self._folder / shard_name(self._writer_name, self._next_sequence)
        room = max(self._shard_bytes, num_tokens * token_bytes(self._spec))
        writer = ShardWriter.create(path, self._spec, self._provenance, room)
        self._next_sequence += 1
        return writer


def _open_unsealed(path: Path) -> ShardWriter | None:
    try:
        return ShardWriter.open(path)
    except StopError as error:
        if error.kind != "shard-sealed":
            raise
        return None


def _spec_mismatch(path: Path, found: CaptureSpec, wanted: CaptureSpec) -> StopError:
    return StopError(
        "spec-mismatch",
        f"{path} holds states of capture spec {found.digest} and this run has {wanted.digest}: "
        "give every capture spec a run folder of its own",
    )
