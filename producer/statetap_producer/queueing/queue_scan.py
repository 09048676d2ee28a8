"""Which of a run's prompts lie in Redis: waiting in the queue, or taken by workers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from statetap_contract import KEY_FORM, queue_name

from statetap_producer.queueing.broker import Broker

#: Messages read at a time, each of some kB, or some 100 kB where prompts are long.
_CHUNK: Final = 200


@dataclass(frozen=True, slots=True)
class QueuedPrompts:
    """Sample keys of one run, as 16 raw bytes, by where their messages were seen."""

    #: Waiting for a worker.
    waiting: frozenset[bytes]
    #: Held by workers. One of them may be waiting too, queued twice.
    taken: frozenset[bytes]

    def __contains__(self, key: str) -> bool:
        raw = bytes.fromhex(key)
        return raw in self.waiting or raw in self.taken


def queued_prompts(broker: Broker, spec_digest: str, run: str) -> QueuedPrompts:
    """The run's prompts in the queue of its capture spec, which runs may share.

    A message moves forward alone: from the queue to a worker, and leaves that when its sample is
    in a shard or in the ledger. It is looked for in this order, and whoever looks into the files
    afterwards has missed none of them. The list grows at its head and is read from there, so that
    what comes meanwhile hides nothing. Two cases remain: the instant in which a worker takes a
    message, and one that goes back to the queue after this was read. Such a prompt may be queued
    once more, which costs a look into the shards.

    Raises:
        MissingError: see ``Broker``.
    """
    waiting = frozenset(_keys(_waiting(broker, queue_name(spec_digest)), spec_digest, run))
    return QueuedPrompts(waiting, frozenset(_keys(_taken(broker), spec_digest, run)))


def _waiting(broker: Broker, queue: str) -> Iterator[Any]:
    start = 0
    while True:
        with broker.asking():
            chunk = cast(list[bytes], broker.client.lrange(queue, start, start + _CHUNK - 1))
        yield from map(_decoded, chunk)
        if len(chunk) < _CHUNK:
            return
        start += _CHUNK


def _taken(broker: Broker) -> Iterator[Any]:
    for name in broker.taken_hashes():
        cursor = 0
        while True:
            with broker.asking():
                answer = broker.client.hscan(name, cursor, count=_CHUNK)
            cursor, chunk = cast(tuple[int, dict[bytes, bytes]], answer)
            # kombu keeps message, exchange and routing key.
            for entry in map(_decoded, chunk.values()):
                yield entry[0] if isinstance(entry, list) and entry else None
            if cursor == 0:
                break


def _keys(messages: Iterator[Any], spec_digest: str, run: str) -> Iterator[bytes]:
    for message in messages:
        match _job_in(message):
            case {"spec": spec, "run": name, "key": str(key)} if (spec, name) == (spec_digest, run):
                if KEY_FORM.fullmatch(key):
                    yield bytes.fromhex(key)


def _job_in(message: Any) -> object:
    """The job in a message, None where there is none: others may use the same Redis."""
    match message:
        case {"body": str(body), "properties": {"body_encoding": "utf-8"}}:
            match _decoded(body):
                case [[job, *_], *_]:
                    return job
    return None


def _decoded(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
