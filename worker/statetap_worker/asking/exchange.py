"""One HTTP request and its whole answer, with a bound on its seconds and on its bytes.

httpx bounds each single wait and nothing else: a peer that sends a byte now and then would hold a
process for ever, and one that sends without end would take all memory.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, cast

import httpx
from statetap_contract import MismatchError

#: What a server says fits many times.
_MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024

_CONNECT_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """An answer that came in whole."""

    status: int
    headers: httpx.Headers
    body: bytes

    def json(self) -> Any:
        """The decoded body. Raises ValueError when it is no JSON."""
        try:
            return json.loads(self.body)
        except RecursionError as error:  # brackets, deep enough
            raise ValueError("its brackets are nested too deeply") from error


def exchange(client: httpx.Client, request: httpx.Request, timeout_s: float) -> WholeAnswer:
    """Sends a request over a connection of its own and reads the answer.

    Args:
        client: keeps no connections, see ``_Watch``.
        request: what is asked.
        timeout_s: seconds for all of it, from connecting to the last byte.

    Raises:
        httpx.TransportError: the connection failed; ``httpx.TimeoutException`` when the time is up.
        MismatchError: kind ``answer-too-long``.
    """
    watch = _Watch()
    request.extensions |= {
        "trace": watch.see,
        "timeout": httpx.Timeout(timeout_s, connect=_CONNECT_TIMEOUT_S).as_dict(),
    }
    with watch.over(timeout_s):
        answer = client.send(request, stream=True)
        try:
            body = _read(answer)
        finally:
            answer.close()
    return WholeAnswer(answer.status_code, answer.headers, body)


def _read(answer: httpx.Response) -> bytes:
    body = bytearray()
    # As it came: what was compressed, though nobody asked for it, may be any size.
    for chunk in cast(httpx.SyncByteStream, answer.stream):
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise MismatchError(
                "answer-too-long", f"{answer.url} answered with more than {_MAX_ANSWER_BYTES} bytes"
            )
    return bytes(body)


class _Watch:
    """Cuts a request's connection when its time is up.

    It knows the connection from the request's own trace, so it must be opened for this request.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._has_cut = False

    def see(self, event: str, info: dict[str, Any]) -> None:
        """What httpx calls with each step of the request."""
        if event == "connection.connect_tcp.complete":
            self._socket = info["return_value"].get_extra_info("socket")
            if self._has_cut:
                self._cut()

    @contextmanager
    def over(self, timeout_s: float) -> Iterator[None]:
        """Watches while the context lasts; raises ``httpx.ReadTimeout`` when it had to cut."""
        timer = threading.Timer(timeout_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield
        except httpx.TransportError as error:
            if self._has_cut:
                raise httpx.ReadTimeout("its time is up") from error
            raise
        finally:
            timer.cancel()
        if self._has_cut:  # at the end of an answer of unknown length
            raise httpx.ReadTimeout("its time is up")

    def _cut(self) -> None:
        self._has_cut = True
        if self._socket is not None:
            with suppress(OSError):  # it is closed already
                self._socket.shutdown(socket.SHUT_RDWR)
