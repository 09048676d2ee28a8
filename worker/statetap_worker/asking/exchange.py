"""One HTTP request and its whole answer, with a bound on its seconds and on its bytes.

The deadline is looked at before each read from the socket: a peer that sends a byte now and then
cannot hold a process for ever, and one that sends without end cannot take all memory.
"""

import http.client
import io
import json
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

from statetap_contract import MismatchError, UsageError
from statetap_contract.api_key import authorization

#: What a server says fits many times.
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024

_CONNECT_TIMEOUT_S: Final = 5.0

_READ_BYTES: Final = 1 << 16


class ExchangeError(Exception):
    """There is no answer."""


class UnreachableError(ExchangeError):
    """No connection: the peer has not seen the request."""


class LateError(ExchangeError):
    """The time is up."""


class BrokenOffError(ExchangeError):
    """The connection ended before the answer did, or what came is no HTTP."""


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that came in whole; ``retry_after`` is that header's text, or empty."""

    status: int
    body: bytes
    retry_after: str = ""

    def json(self) -> Any:
        """The decoded body. Raises ValueError when it is no JSON."""
        try:
            return json.loads(self.body)
        except RecursionError as error:  # brackets, deep enough
            raise ValueError("its brackets are nested too deeply") from error


class Peer:
    """A server, asked over a new connection each time.

    A kept one may hold the rest of an earlier answer, or end because it rested too long, which
    would look like the server's death; and it saves nothing that could be measured. A server on
    one's own host is not reached through the environment's proxy, nor is it encrypted.

    Args:
        url: like ``http://127.0.0.1:30000``, with a path where all its paths begin with one.
        api_key: shown with every request; a server without a key does not look at it.

    Raises:
        UsageError: kind ``server-url``.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError(
                "server-url", f"{url!r} is no server address; write it like http://127.0.0.1:30000"
            )
        self._url = url
        self._address = (parts.hostname, parts.port or http.client.HTTP_PORT)
        self._path = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2]} | authorization(api_key)

    def exchange(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float
    ) -> WholeAnswer:
        """Sends a request and reads the answer.

        Args:
            method: of HTTP.
            path: begins with a slash.
            body: JSON, where there is one.
            timeout_s: seconds for all of it, from connecting to the last byte.

        Raises:
            ExchangeError: there is no answer.
            MismatchError: kind ``answer-too-long``.
            ValueError: the address is none.
        """
        until_s = time.monotonic() + timeout_s
        request = self._request(method, path, body)
        try:
            connection = socket.create_connection(self._address, min(timeout_s, _CONNECT_TIMEOUT_S))
        except OSError as error:
            raise UnreachableError(str(error)) from error
        with connection:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(timeout_s)
                # Who hangs up before the end of a request may have said why.
                with suppress(ConnectionError):
                    connection.sendall(request)
                return self._read(_Incoming(connection, until_s, self._url), method)
            except TimeoutError as error:
                raise LateError("its time is up") from error
            except (OSError, http.client.HTTPException) as error:
                raise BrokenOffError(f"{type(error).__name__}: {error}") from error

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        head = f"{method} {self._path}{path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in self._headers.items())
        head += "Connection: close\r\nAccept-Encoding: identity\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        return f"{head}\r\n".encode("ascii") + (body or b"")

    def _read(self, incoming: "_Incoming", method: str) -> WholeAnswer:
        # All that it wants of a socket is its file.
        answer = http.client.HTTPResponse(cast(socket.socket, incoming), method=method)
        with answer:
            answer.begin()
            if incoming.has_ended:  # which http.client takes for the end of the headers
                raise http.client.RemoteDisconnected("it ended within the headers")
            body = bytearray()
            # In pieces: a read of what is announced would take memory for all of it first.
            while piece := answer.read(_READ_BYTES):
                body += piece
            if answer.length:
                raise http.client.IncompleteRead(bytes(body), answer.length)
        return WholeAnswer(answer.status, bytes(body), answer.headers.get("Retry-After", ""))


class _Incoming(io.RawIOBase):
    """What a peer sends, until the time is up or it is too much."""

    def __init__(self, connection: socket.socket, until_s: float, url: str) -> None:
        self._connection = connection
        self._until_s = until_s
        self._url = url
        self._num_left = _MAX_ANSWER_BYTES
        self.has_ended = False

    def makefile(self, _mode: str) -> io.BufferedReader:
        """As sockets have it."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining_s = self._until_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining_s)
        num_bytes = self._connection.recv_into(buffer)
        self.has_ended = not num_bytes
        self._num_left -= num_bytes
        if self._num_left < 0:
            raise MismatchError(
                "answer-too-long", f"{self._url} answered with more than {_MAX_ANSWER_BYTES} bytes"
            )
        return num_bytes
