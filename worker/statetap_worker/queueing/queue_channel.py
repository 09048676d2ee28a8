"""kombu's Redis transport, with a gate: what comes out of the queue is read before Celery sees it.

kombu reads the item of a list within one function, and what it raises there ends the worker. So
does the shape of a broadcast. Both are seams of kombu 5.7, which the tests hold against garbage.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from queue import Empty
from typing import Any, Final, cast

import redis
import structlog
from celery.exceptions import WorkerShutdown
from kombu.transport import TRANSPORT_ALIASES, get_transport_cls, virtual
from kombu.transport.redis import Channel, QoS, Transport
from statetap_contract import RejectError, StopError
from statetap_contract.transport import is_queue_name

from statetap_worker.queueing.queue_message import read_message
from statetap_worker.queueing.taken_messages import requeue_held, say_alive
from statetap_worker.queueing.unreadable import set_aside

logger = structlog.get_logger(__name__)

_SCHEMES: Final = ("redis", "rediss")

#: What a cut or dead connection ends with.
_BROKEN: Final = (redis.ConnectionError, redis.TimeoutError)


def guarded(settings: Mapping[str, Any], ledger: Path) -> dict[str, Any]:
    """Celery's settings, with the gate in its Redis transport.

    The scheme of the broker's address says which transport kombu takes, and whether it encrypts;
    ``broker_transport`` would replace both.

    Args:
        settings: as ``celery_settings`` gives them.
        ledger: where messages go that cannot be read.
    """
    for scheme in _SCHEMES:
        TRANSPORT_ALIASES[scheme] = f"{__name__}:{QueueTransport.__name__}"
        if get_transport_cls(scheme) is not QueueTransport:
            raise RuntimeError(f"kombu has chosen a transport for {scheme}:// already")
    options = dict(settings["broker_transport_options"], unreadable_ledger=str(ledger))
    return dict(settings, broker_transport_options=options)


class _Client(redis.Redis):
    """A client whose BRPOP gives only items that pass the gate; else None, as when time is up."""

    def __init__(self, *args: Any, channel: "QueueChannel", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._channel = channel

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        answer = super().parse_response(connection, command_name, **options)  # type: ignore[no-untyped-call]
        if command_name != "BRPOP" or not answer:
            return answer
        return self._channel.read_item(*cast(tuple[bytes, bytes], answer))


class _Held(QoS):
    """What the worker holds; kombu puts back by itself what is there for too long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        #: What was acknowledged and Redis was not told of, for want of a connection.
        self._owed: list[str] = []

    def ack(self, delivery_tag: str) -> None:
        # What is acknowledged twice is acknowledged.
        self._owed.append(delivery_tag)
        try:
            self._tell()
        except _BROKEN:
            try:
                self._tell()
            except _BROKEN as error:
                # Told with the next one; or else given back some day, and found stored. Raised, it
                # would be held until kombu connects anew, which a cut that is over by then does not
                # make it do, and no other would be taken in its stead.
                logger.warning(
                    "acknowledgements are owed", num_messages=len(self._owed), why=str(error)
                )
        virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]

    def _tell(self) -> None:
        while self._owed:
            self._remove(self._owed[-1])
            self._owed.pop()

    def _remove(self, delivery_tag: str) -> None:
        """As kombu does it, in one packet and past redis-py's pipeline, which takes longer.

        Half of it done does no harm: what is left of the entry is given back, and found stored.
        """
        commands = ("ZREM", self.unacked_index_key), ("HDEL", self.unacked_key)
        with self.channel.conn_or_acquire() as client:
            connection = client.connection_pool.get_connection()
            try:
                packed = connection.pack_commands((*command, delivery_tag) for command in commands)
                connection.send_packed_command(packed)
                for _ in commands:
                    connection.read_response()
            except BaseException:
                connection.disconnect()
                raise
            finally:
                client.connection_pool.release(connection)

    def restore_visible(self, *args: Any, **options: Any) -> None:
        # What is there before the channel listens is put back when it does, garbage or not.
        if self.channel.is_listening:
            super().restore_visible(*args, **options)  # type: ignore[no-untyped-call]


class QueueChannel(Channel):
    """A channel that takes what is no message out of the queue, and lives on."""

    QoS = _Held

    #: Whether it takes prompts.
    is_listening = False

    from_transport_options: tuple[str, ...] = (  # type: ignore[assignment]
        *Channel.from_transport_options,
        "unreadable_ledger",
    )

    #: Path of the ledger. A transport option must be JSON, since Flower is shown it.
    unreadable_ledger: str

    _short: redis.Redis | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        """Opens a channel.

        Raises:
            redis.ConnectionError: Redis is not there or has no memory; Celery tries again,
                at growing intervals.
        """
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        try:
            # Redis without memory gives messages, and does not note who has them: they would be
            # lost. This it refuses.
            with self.conn_or_acquire() as client:
                say_alive(client, self.unacked_key)
        except BaseException as error:
            self.close()  # type: ignore[no-untyped-call]
            if isinstance(error, redis.OutOfMemoryError):
                raise redis.ConnectionError(
                    f"Redis has no memory ({error}); raise its maxmemory"
                ) from error
            raise

    def basic_consume(self, queue: str, *args: Any, **options: Any) -> Any:
        """Listens to a queue; what was held before, and cannot be acknowledged now, goes back."""
        if is_queue_name(queue):
            with self.conn_or_acquire() as client:
                requeue_held(client, self.unacked_key, Path(self.unreadable_ledger))
            self.is_listening = True
        return super().basic_consume(queue, *args, **options)  # type: ignore[no-untyped-call]

    def _connparams(self, *args: Any, **options: Any) -> Any:
        # Of a connection that is gone kombu asks the address to put back what was taken. What it
        # raises then would end the worker; a lost connection does not.
        if self.connection is None or self.connection.client is None:
            raise redis.ConnectionError("the connection is closed")
        return super()._connparams(*args, **options)  # type: ignore[no-untyped-call]

    def read_item(self, name: bytes, item: bytes) -> tuple[bytes, bytes] | None:
        """What kombu is told that it took from a list; None where that went to the ledger.

        Raises:
            WorkerShutdown: the ledger cannot be written; the item is in the queue again.
        """
        queue = name.decode().rsplit(self.sep, 1)[0]
        try:
            return name, read_message(item, queue)
        except RejectError as unreadable:
            try:
                set_aside(Path(self.unreadable_ledger), item, queue, unreadable)
            except OSError as unwritten:
                self._put_back_and_stop(name, item, unwritten)
            return None

    def _put_back_and_stop(self, name: bytes, item: bytes, unwritten: OSError) -> None:
        logger.critical(
            "stopping this worker",
            kind="ledger-unwritable",
            why=f"cannot write to {self.unreadable_ledger}: {unwritten}",
        )
        with self.conn_or_acquire() as client:
            client.rpush(name, item)
        # A channel that is closing takes one last item, and its worker is stopping already.
        if not self._closing:
            raise WorkerShutdown(StopError.exit_code)

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  as in kombu
        """A client; for short commands the same one, since kombu asks for each of them."""
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        # A pool that was closed is replaced.
        if self._short is None or self._short.connection_pool is not self.pool:
            self._short = super()._create_client()  # type: ignore[no-untyped-call]
        return self._short

    def _get_client(self) -> Any:
        return functools.partial(_Client, channel=self)

    def _receive_one(self, c: Any) -> Any:
        """A broadcast; Flower asks that way. One that cannot be read is dropped."""
        try:
            return super()._receive_one(c)  # type: ignore[no-untyped-call]
        except (Empty, OSError, redis.RedisError):
            raise
        except Exception as error:  # noqa: BLE001  whatever kombu stumbles over in it
            logger.warning("unreadable broadcast dropped", why=f"{type(error).__name__}: {error}")
            return False

    def _deliver_fanout_message(self, message: Any, exchange: str) -> Any:
        # What is small might be large when unpacked.
        message["headers"].pop("compression", None)
        return super()._deliver_fanout_message(message, exchange)  # type: ignore[no-untyped-call]


class QueueTransport(Transport):
    """kombu's, but for its channels."""

    Channel = QueueChannel
