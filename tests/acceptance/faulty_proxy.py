"""A proxy between worker and server that passes everything on, but for what it is told to spoil."""

import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx
from statetap_contract import FIELD

#: A kept connection that the server ends would be a fault that nobody asked for.
_UPSTREAM_LIMITS = httpx.Limits(max_keepalive_connections=0)

#: Closes with a reset: what was sent may not arrive.
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request of a worker for one prompt, which a fault answers as it likes."""

    proxy: "FaultyProxy"
    key: str
    body: dict[str, Any]
    connection: socket.socket

    def forward(self) -> httpx.Response:
        """What the server answers."""
        return self.proxy.upstream.post("/generate", json=self.body)

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        """A whole answer; anything but bytes goes as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(content)}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join([*lines, "", ""]).encode() + content)

    def send(self, data: bytes) -> None:
        """Bytes as they are. Raises OSError when the worker has gone."""
        self.connection.sendall(data)
        self.proxy.sent_bytes[self.key] += len(data)

    def cut(self) -> None:
        """Ends the connection as the death of a process does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.connection.close()

    def outwait(self) -> None:
        """Says nothing until the worker hangs up."""
        self.connection.settimeout(60)
        self.connection.recv(1)


#: Answers one request wrongly, or not at all.
Injection = Callable[[Exchange], None]


class FaultyProxy:
    """Listens on loopback while the context is open.

    Args:
        server_url: where requests go.
        dumps: the server's dump folder.
    """

    def __init__(self, server_url: str, dumps: Path) -> None:
        self.dumps = dumps
        self.upstream = httpx.Client(
            base_url=server_url, timeout=120, limits=_UPSTREAM_LIMITS, trust_env=False
        )
        #: What to inject for a key, and for how many of its requests.
        self.faults: dict[str, tuple[Injection, int]] = {}
        #: Changes what the server says of itself.
        self.change_info: Callable[[dict[str, Any]], dict[str, Any]] = lambda capture: capture
        #: Requests, and bytes of spoiled answers, by key.
        self.asked: Counter[str] = Counter()
        self.sent_bytes: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._injecting: dict[str, threading.Lock] = {}
        self._door = threading.Lock()
        listener = self._listen(0)
        self.port: int = listener.server_address[1]
        self._listener: ThreadingHTTPServer | None = listener
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_door()
        self.upstream.close()

    def close_door(self) -> None:
        """Connections are refused from now on."""
        with self._door:
            if self._listener is not None:
                self._listener.shutdown()
                self._listener.server_close()
                self._listener = None

    def open_door(self) -> None:
        """Listens again."""
        with self._door:
            if self._listener is None:
                self._listener = self._listen(self.port)

    def injection(self, key: str) -> Injection | None:
        """What to do with the next request for a key."""
        with self._lock:
            self.asked[key] += 1
            injection, num_times = self.faults.get(key, (None, 0))
            return injection if self.asked[key] <= num_times else None

    def inject(self, injection: Injection, exchange: Exchange) -> None:
        """Answers; of a key whose worker did not wait for it, one request after the other."""
        with self._lock:
            lock = self._injecting.setdefault(exchange.key, threading.Lock())
        with lock, suppress(OSError):
            injection(exchange)

    def _listen(self, port: int) -> ThreadingHTTPServer:
        listener = _Listener(("127.0.0.1", port), _handler(self))
        threading.Thread(target=listener.serve_forever, args=(0.05,), daemon=True).start()
        return listener


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A worker that hangs up is what many faults are for."""


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer = proxy.upstream.get(self.path)
            if not answer.is_success:
                self._pass_on(answer.status_code, answer.content)
                return
            info = answer.json()
            for state in info["internal_states"]:
                state[FIELD] = proxy.change_info(state[FIELD])
            self._pass_on(200, json.dumps(info).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            exchange = Exchange(proxy, body["rid"], body, self.connection)
            injection = proxy.injection(exchange.key)
            if injection is None:
                answer = exchange.forward()
                retry_after = answer.headers.get("Retry-After")
                self._pass_on(answer.status_code, answer.content, retry_after)
                return
            self.close_connection = True
            proxy.inject(injection, exchange)

        def _pass_on(self, status: int, content: bytes, retry_after: str | None = None) -> None:
            self.close_connection = True
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            if retry_after is not None:
                self.send_header("Retry-After", retry_after)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    return Handler
