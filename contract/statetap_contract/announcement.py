"""Announcements: what workers say in Redis of samples on disks that the producer may not see.

A place is one folder of runs on one worker's disk. For each of its runs it has a record, and two
lists that the record names by their epoch: packed samples and packed dead letters. A record never
promises more than its lists hold, and lists only grow; what was announced and is not there any more
is taken back by a new epoch, that is by another record and other lists.

A place also has a presence: that somebody speaks for it, and until when what it says is complete.
"""

import hashlib
import json
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from statetap_contract.dead_letter import DeadLetter
from statetap_contract.strict_json import FieldReader, read_record

#: Set of all places.
PLACES_KEY: Final = "statetap.places"

#: Names a place, in its folder of runs. A leading dot: it is no run.
PLACE_FILE: Final = ".statetap-place"

#: Characters of that file: a dot and 32 hex digits.
_PLACE_CHARS: Final = 33

_KEY_BYTES: Final = 16
_COUNT_BYTES: Final = 4


def announced_key(place: str) -> str:
    """Hash of a place's records: name of the run to ``Announcement``."""
    return f"statetap.announced.{place}"


def speaker_key(place: str) -> str:
    """Lease of the worker that speaks for a place."""
    return f"statetap.speaker.{place}"


def presence_key(place: str) -> str:
    """A place's ``Presence``."""
    return f"statetap.presence.{place}"


def serving_key(spec_digest: str) -> str:
    """Set of the places of workers that listen to a capture spec's queue, or did once."""
    return f"statetap.serving.{spec_digest}"


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
    #: Room on the disk of the run's folder then.
    free_bytes: int

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


@dataclass(frozen=True, slots=True)
class Presence:
    """That a place is spoken for, whether or not it holds anything of a run."""

    #: As in ``Announcement``.
    worker: str
    host: str
    folder: str
    #: All that was durable then is announced; microseconds since 1970 by the clock of Redis.
    #: 0 until that can be said.
    time_us: int
    #: Runs of which it cannot be said.
    behind: tuple[str, ...]

    def tells(self, run: str) -> bool:
        """Whether what is announced of a run is all that there was at ``time_us``."""
        return self.time_us > 0 and run not in self.behind

    def encode(self) -> bytes:
        """The presence as Redis holds it; ``decode`` reads it back."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads ``encode``'s bytes. Raises ValueError when they are no such presence."""
        try:
            fields = FieldReader(json.loads(data), "the presence")
        except RecursionError as error:
            raise ValueError("the presence is nested too deeply") from error
        names = {name: fields.take(name, str) for name in ("worker", "host", "folder")}
        time_us, behind = fields.take("time_us", int), fields.take("behind", list)
        fields.finish()
        if not all(isinstance(run, str) for run in behind):
            raise ValueError("the presence: 'behind' is not a list of runs")
        return cls(**names, time_us=time_us, behind=tuple(behind))


def read_place(runs: Path) -> str:
    """The name of a folder of runs: 32 hex digits, others for a copy of the folder.

    Raises:
        OSError: the folder has no name yet, or cannot be read.
        ValueError: the file that names it is not whole.
    """
    file = runs / PLACE_FILE
    text = file.read_text()
    if len(text) != _PLACE_CHARS:
        raise ValueError(f"{file} has {len(text)} characters, not {_PLACE_CHARS}")
    # The inode tells a copy from the original.
    seed = f"{text} {file.stat().st_ino}"
    return hashlib.blake2b(seed.encode(), digest_size=16).hexdigest()


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
