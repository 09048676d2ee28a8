"""What Redis says of places, where workers keep their disks: for one run, at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from statetap_contract.announcement import (
    PLACES_KEY,
    Announcement,
    Presence,
    announced_key,
    presence_key,
    serving_key,
    speaker_key,
)

from statetap_producer.queueing.broker import Broker

#: Answers for each place.
_NUM_ANSWERS: Final = 3


@dataclass(frozen=True, slots=True)
class PlaceWord:
    """What is said of one place."""

    #: What it holds of the run; None when there is no record, or none that can be read.
    record: Announcement | None
    #: There is a record of another version of statetap, or another program's.
    is_garbled: bool
    presence: Presence | None
    #: Whether a worker speaks for the place now, or did some seconds ago.
    is_alive: bool
    #: Whether a worker of the place was seen at the queue of the run's capture spec.
    is_serving: bool

    @property
    def is_blank(self) -> bool:
        """Whether Redis has lost what was said, and nobody has said anything since."""
        return not (self.is_alive or self.is_garbled or self.record or self.presence)

    def has_told(self, run: str, since_us: int = 0) -> bool:
        """Whether all that was durable at a time is announced, as far as it is of this run."""
        presence = self.presence
        return presence is not None and presence.tells(run) and presence.time_us >= since_us


@dataclass(frozen=True, slots=True)
class Places:
    """All places that Redis knows of."""

    #: Microseconds since 1970 by the clock of Redis, when this was read.
    time_us: int
    words: Mapping[str, PlaceWord]

    @classmethod
    def read(cls, broker: Broker, run: str, spec_digest: str) -> "Places":
        """One look, in two steps. Raises MissingError as ``Broker``."""
        with broker.asking():
            client = broker.client
            seconds, microseconds = client.time()
            serving = cast(set[bytes], client.smembers(serving_key(spec_digest)))
            names = sorted(cast(set[bytes], client.smembers(PLACES_KEY)) | serving)
            places = [name.decode(errors="replace") for name in names]
            with client.pipeline(transaction=False) as pipeline:
                for place in places:
                    pipeline.hget(announced_key(place), run)
                    pipeline.get(presence_key(place))
                    pipeline.exists(speaker_key(place))
                answers = pipeline.execute()
        words = {}
        for number, (name, place) in enumerate(zip(names, places, strict=True)):
            data, presence, is_alive = answers[_NUM_ANSWERS * number :][:_NUM_ANSWERS]
            record = _record_in(data)
            words[place] = PlaceWord(
                record=record,
                is_garbled=data is not None and record is None,
                presence=_presence_in(presence),
                is_alive=bool(is_alive),
                is_serving=name in serving,
            )
        return cls(1_000_000 * seconds + microseconds, words)


def _record_in(data: bytes | None) -> Announcement | None:
    try:
        return None if data is None else Announcement.decode(data)
    except ValueError:
        return None


def _presence_in(data: bytes | None) -> Presence | None:
    try:
        return None if data is None else Presence.decode(data)
    except ValueError:
        return None
