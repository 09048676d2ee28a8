"""DirectRedis: one connection to Redis, for what is asked many times a second and may fail."""

from contextlib import suppress
from typing import Any, Final

import redis

#: Seconds that Redis may take to answer or to be connected to; one that is gone shall not hold
#: samples up.
TIMEOUT_S: Final = 3.0


class DirectRedis:
    """Without redis-py's client, which costs more than what is asked here.

    It connects by itself, and anew where the connection was lost.
    """

    def __init__(self, redis_url: str) -> None:
        self._connection = redis.ConnectionPool.from_url(
            redis_url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
        ).make_connection()
        #: Whether Redis was told something, and its answer was not read yet.
        self._is_owed = False

    def ask(self, *command: str | bytes | int) -> Any:
        """One command's answer. Raises redis.RedisError."""
        try:
            self._send(*command)
            return self._connection.read_response()
        except redis.ResponseError:
            raise  # is an answer
        except BaseException:
            # The answer may come yet, and would be taken for the next one's.
            self.close()
            raise

    def tell(self, *command: str | bytes | int) -> None:
        """One command, whose answer is for the next one to read. Raises redis.RedisError."""
        self._send(*command)
        self._is_owed = True

    def close(self) -> None:
        """Ends the connection; the next command makes another."""
        self._is_owed = False
        self._connection.disconnect()  # type: ignore[no-untyped-call]

    def _send(self, *command: str | bytes | int) -> None:
        try:
            if self._is_owed:
                self._read_owed()
            if self._connection.can_read():
                # Nothing is owed: Redis closed it, as one does that ends.
                self.close()
        except redis.RedisError:
            self.close()
        self._connection.send_command(*command)  # type: ignore[no-untyped-call]

    def _read_owed(self) -> None:
        """The answer to what was told last; a refusal changes nothing any more."""
        with suppress(redis.ResponseError):
            self._connection.read_response()
        self._is_owed = False
