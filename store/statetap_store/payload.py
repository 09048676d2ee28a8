"""A sample's payload on disk: its three parts and their checksums."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from statetap_store.file_bytes import hash_range
from statetap_store.layout import ByteRange, ShardLayout


class HasPayload(Protocol):
    """What says where a payload is and what it must hash to: an index row, a sample's entry."""

    @property
    def token_offset(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def states_xxh3(self) -> int: ...
    @property
    def ids_xxh3(self) -> int: ...
    @property
    def mask_xxh3(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PayloadPart:
    """One part of a payload: where it is and what its bytes must hash to."""

    #: ``token ids``, ``loss mask`` or ``states``.
    name: str
    where: ByteRange
    #: xxh3-64.
    expected: int


def payload_parts(layout: ShardLayout, row: HasPayload) -> Iterator[PayloadPart]:
    """The parts of a row's payload, the large one last."""
    tokens = row.token_offset, row.num_tokens
    yield PayloadPart("token ids", layout.token_ids(*tokens), row.ids_xxh3)
    yield PayloadPart("loss mask", layout.loss_mask(*tokens), row.mask_xxh3)
    yield PayloadPart("states", layout.states(*tokens), row.states_xxh3)


def fits(layout: ShardLayout, row: HasPayload) -> bool:
    """Whether the row's tokens lie inside the shard."""
    return row.token_offset + row.num_tokens <= layout.capacity_tokens


def is_payload_intact(fd: int, layout: ShardLayout, row: HasPayload) -> bool:
    """Whether the payload is there and is what the row says."""
    return fits(layout, row) and all(
        hash_range(fd, part.where) == part.expected for part in payload_parts(layout, row)
    )
