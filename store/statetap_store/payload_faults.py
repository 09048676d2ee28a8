"""What can be wrong with one sample's payload: missing, damaged, or never computed by a model."""

from array import array
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import xxhash
from statetap_contract import CaptureSpec, Prompt, sample_key

from statetap_store.bad_rows import BadRow, bad_rows
from statetap_store.dtypes import storage_dtype
from statetap_store.file_bytes import PIECE_BYTES, read_pieces, read_range
from statetap_store.index_row import IndexRow
from statetap_store.layout import ByteRange
from statetap_store.payload import fits, payload_parts
from statetap_store.shard_file import ShardFile
from statetap_store.shard_report import Fault


def payload_faults(shard: ShardFile, row: IndexRow, *, has_digest_keys: bool) -> Iterator[Fault]:
    """Checks a sample's payload; of one outside the shard nothing is looked at.

    Args:
        shard: open for reading.
        row: describes the sample.
        has_digest_keys: whether the key is known to be the digest of capture spec, ids and mask,
            and is compared with it.
    """
    layout, spec = shard.header.layout, shard.header.spec
    sample = f"sample {row.key} in {shard.path}"
    if not fits(layout, row):
        return
    ids, mask, states = payload_parts(layout, row)
    try:
        prompt = [read_range(shard.fd, part.where) for part in (ids, mask)]
        damaged = [
            part.name
            for part, data in zip((ids, mask), prompt, strict=True)
            if xxhash.xxh3_64_intdigest(data) != part.expected
        ]
        found = _BadSlots(spec)
        states_xxh3 = _check_states(shard.fd, states.where, spec, found)
    except OSError as error:
        yield Fault("payload-unreadable", row.key, f"{sample} cannot be read ({error.strerror})")
        return
    if states_xxh3 != states.expected:
        damaged.append(states.name)
    for name in damaged:
        yield Fault("payload-corrupt", row.key, f"{sample} has {name} that fail their checksum")
    if has_digest_keys and not damaged and not _is_digest(row.key, spec, *prompt):
        yield Fault(
            "prompt-differs",
            row.key,
            f"{sample} holds token ids or a loss mask that its prompt does not have",
        )
    if states.name not in damaged:
        for bad, count in found.summary():
            others = f", as in {count - 1} other rows" if count > 1 else ""
            yield Fault(f"states-{bad.kind}", row.key, f"{sample}: {bad}{others}")


def _check_states(fd: int, where: ByteRange, spec: CaptureSpec, found: "_BadSlots") -> int:
    """xxh3-64 of the states; their bad rows are ``found``. Raises OSError."""
    digest = xxhash.xxh3_64()
    whole_rows = max(1, PIECE_BYTES // spec.row_bytes) * spec.row_bytes
    for _, piece in read_pieces(fd, where, whole_rows):
        digest.update(piece)
        found.add(piece[: len(piece) - len(piece) % spec.row_bytes])
    return digest.intdigest()


def _is_digest(key: str, spec: CaptureSpec, token_ids: bytes, loss_mask: bytes) -> bool:
    """Whether the key is the one of these ids and this mask, which are not empty."""
    edges = np.flatnonzero(np.diff(np.frombuffer(loss_mask, np.uint8), prepend=0, append=0))
    bounds = edges.tolist()
    try:
        spans = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        return sample_key(spec.digest, Prompt(array("i", token_ids), spans)) == key
    except ValueError:
        # No prompt has such ids or such a mask.
        return False


class _BadSlots:
    """Bad rows of one sample, which comes in pieces: the first of each kind and slot."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._spec = spec
        self._num_rows = 0
        self._found: dict[tuple[str, str], tuple[BadRow, int]] = {}

    def add(self, data: memoryview) -> None:
        """Takes the next whole rows."""
        states = np.frombuffer(data, storage_dtype(self._spec.dtype))
        rows = states.reshape(-1, self._spec.row_width)
        for bad in bad_rows(rows, self._spec):
            here = replace(bad, row=self._num_rows + bad.row)
            first, count = self._found.get((bad.kind, bad.slot), (here, 0))
            self._found[bad.kind, bad.slot] = first, count + 1
        self._num_rows += len(rows)

    def summary(self) -> Iterator[tuple[BadRow, int]]:
        """The first bad row of each kind and slot, and how many there are."""
        yield from self._found.values()
