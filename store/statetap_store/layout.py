"""Where the parts of a shard lie, in bytes from the start of the file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from statetap_contract import CaptureSpec

from statetap_store.index_row import ROW_BYTES

#: Every dataset starts at a multiple of this. What precedes the first one is the header.
ALIGNMENT: Final = 1024 * 1024

#: Headers are kept in multiples of a page.
PAGE_BYTES: Final = 4096

#: The header's copies start here, in every shard, so that they are found without the header.
BACKUP_OFFSET: Final = ALIGNMENT
BACKUP_BYTES: Final = ALIGNMENT

#: Bytes of one token id and of its place in the loss mask.
TOKEN_ID_BYTES: Final = 4
LOSS_MASK_BYTES: Final = 1

#: Samples a new shard has room for: some, and one more for this many tokens. Conversations are
#: longer than that; a shard whose index fills up first is rolled over like any full one.
MIN_SAMPLES: Final = 64
TOKENS_PER_SAMPLE: Final = 16


@dataclass(frozen=True, slots=True)
class ByteRange:
    """``num_bytes`` bytes from ``offset``."""

    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Capacities and offsets of one shard; in a sealed one the capacities are exact."""

    capacity_samples: int
    capacity_tokens: int
    #: Bytes of one row of states.
    row_bytes: int
    index_offset: int
    token_ids_offset: int
    loss_mask_offset: int
    states_offset: int

    @classmethod
    def planned(cls, spec: CaptureSpec, shard_bytes: int) -> "ShardLayout":
        """The layout of a new shard whose payload fits ``shard_bytes`` bytes."""
        capacity_tokens = max(1, shard_bytes // token_bytes(spec))
        capacity_samples = min(capacity_tokens, MIN_SAMPLES + capacity_tokens // TOKENS_PER_SAMPLE)
        return cls.of(spec, capacity_samples, capacity_tokens)

    @classmethod
    def of(cls, spec: CaptureSpec, capacity_samples: int, capacity_tokens: int) -> "ShardLayout":
        """The layout of a new shard with room for exactly so many samples and tokens."""
        index_offset = BACKUP_OFFSET + BACKUP_BYTES
        token_ids_offset = _aligned(index_offset + ROW_BYTES * capacity_samples)
        loss_mask_offset = _aligned(token_ids_offset + TOKEN_ID_BYTES * capacity_tokens)
        return cls(
            capacity_samples=capacity_samples,
            capacity_tokens=capacity_tokens,
            row_bytes=spec.row_bytes,
            index_offset=index_offset,
            token_ids_offset=token_ids_offset,
            loss_mask_offset=loss_mask_offset,
            states_offset=_aligned(loss_mask_offset + LOSS_MASK_BYTES * capacity_tokens),
        )

    @property
    def index(self) -> ByteRange:
        return ByteRange(self.index_offset, ROW_BYTES * self.capacity_samples)

    def token_ids(self, token_offset: int, num_tokens: int) -> ByteRange:
        return ByteRange(
            self.token_ids_offset + TOKEN_ID_BYTES * token_offset, TOKEN_ID_BYTES * num_tokens
        )

    def loss_mask(self, token_offset: int, num_tokens: int) -> ByteRange:
        return ByteRange(
            self.loss_mask_offset + LOSS_MASK_BYTES * token_offset, LOSS_MASK_BYTES * num_tokens
        )

    def states(self, token_offset: int, num_tokens: int) -> ByteRange:
        return ByteRange(
            self.states_offset + self.row_bytes * token_offset, self.row_bytes * num_tokens
        )

    def row(self, sequence: int) -> ByteRange:
        return ByteRange(self.index_offset + ROW_BYTES * sequence, ROW_BYTES)

    def datasets(self) -> Iterator[ByteRange]:
        """All five datasets, in file order."""
        yield ByteRange(BACKUP_OFFSET, BACKUP_BYTES)
        yield self.index
        yield self.token_ids(0, self.capacity_tokens)
        yield self.loss_mask(0, self.capacity_tokens)
        yield self.states(0, self.capacity_tokens)

    @property
    def file_bytes(self) -> int:
        """The length of the whole file; a dataset without elements has no place in it."""
        return max(dataset.end for dataset in self.datasets() if dataset.num_bytes)


def token_bytes(spec: CaptureSpec) -> int:
    """Bytes that one token takes in a shard: its states, its id, its place in the loss mask."""
    return spec.row_bytes + TOKEN_ID_BYTES + LOSS_MASK_BYTES


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
