"""Announcements: what workers say in Redis of samples on disks that the producer may not see.

A place is one folder of runs on one worker's disk. For each of its runs it has a record, and two
lists that the record names by their epoch: packed samples and packed dead letters. A record never
promises more than its lists hold, and lists only grow; what was announced and is not there any more
is taken back by a new epoch, that is by another record and other lists.
"""

import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

from statetap_contract.dead_letter import DeadLetter
from statetap_contract.strict_json import read_record

#: Set of all places.
PLACES_KEY: Final = "statetap.places"

_KEY_BYTES: Final = 16
_COUNT_BYTES: Final = 4


def announced_key(place: str) -> str:
    """Hash of a place's records: name of the run to ``Announcement``."""
    return f"statetap.announced.{place}"


def speaker_key(place: str) -> str:
    """Lease of the worker that speaks for a place."""
    return f"statetap.speaker.{place}"


def announced_samples_key(place: str, run: str, epoch: str) -> str:
    """List of an epoch's samples; each element is made by ``pack_samples``."""
    return f"statetap.announced-samples.{place}.{epoch}.{run}"


def announced_letters_key(place: str, run: str, epoch: str) -> str:
    """List of an epoch's dead letters; each element is made by ``pack_letters``."""
    return f"statetap.announced-letters.{place}.{epoch}.{run}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a place holds of one run: all that was durable there when it was written."""

    #: Changes when something is taken back.
    epoch: str
    #: Elements of the two lists.
    num_sample_batches: int
    num_letter_batches: int
    num_samples: int
    #: The worker that speaks for the place, its host, and the place's folder there.
    worker: str
    host: str
    folder: str
    #: When it was written, seconds since 1970 by the clock of Redis.
    time_s: int

    def encode(self) -> bytes:
        """The record as Redis holds it; ``decode`` reads it back."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads ``encode``'s bytes. Raises ValueError when they are no such record."""
        try:
            return read_record(cls, json.loads(data), "the announcement")
        except RecursionError as error:
            raise ValueError("the announcement is nested too deeply") from error


def pack_samples(keys: str, num_tokens: "array[int]") -> bytes:
    """One batch of samples, 20 bytes each.

    Args:
        keys: the sample keys, one after another without anything between.
        num_tokens: uint32 (typecode ``I``), one for each key.

    Raises:
        ValueError: keys and counts do not go together.
    """
    packed = bytes.fromhex(keys)
    if num_tokens.typecode != "I" or len(packed) != _KEY_BYTES * len(num_tokens):
        raise ValueError(f"{len(keys)} digits of keys do not go with {len(num_tokens)} counts")
    return packed + _little_endian(num_tokens).tobytes()


def unpack_samples(batch: bytes) -> Iterator[tuple[str, int]]:
    """Key and tokens of each sample. Raises ValueError when it is no batch."""
    num_samples, rest = divmod(len(batch), _KEY_BYTES + _COUNT_BYTES)
    if rest:
        raise ValueError(f"a batch of samples has {len(batch)} bytes")
    num_tokens = array("I", batch[_KEY_BYTES * num_samples :])
    keys = batch[: _KEY_BYTES * num_samples].hex()
    width = 2 * _KEY_BYTES
    starts = range(0, len(keys), width)
    return zip(
        (keys[start : start + width] for start in starts), _little_endian(num_tokens), strict=True
    )


def pack_letters(letters: Iterable[DeadLetter]) -> bytes:
    """One batch of dead letters, compressed: their messages are much alike."""
    return zlib.compress(json.dumps([letter.to_json() for letter in letters]).encode())


def unpack_letters(batch: bytes) -> Sequence[DeadLetter]:
    """The letters of a batch. Raises ValueError when it is none."""
    try:
        values = json.loads(zlib.decompress(batch))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"a batch of dead letters cannot be read: {error}") from error
    if not isinstance(values, list):
        raise ValueError("a batch of dead letters is no list")
    return [DeadLetter.from_json(value) for value in values]


def _little_endian(numbers: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return numbers
    swapped = array(numbers.typecode, numbers)
    swapped.byteswap()
    return swapped
