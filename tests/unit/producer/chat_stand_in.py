"""A chat server without a model: for what a real one cannot be made to do.

The acceptance tests run the same command against real SGLang.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

#: Status and body, or None for a right answer; takes the request and how often it came, from 1.
Behaviour = Callable[[dict[str, Any], int], tuple[int, dict[str, Any]] | None]


def echo(body: dict[str, Any]) -> dict[str, Any]:
    """The message of a right answer: it repeats the last turn, which tells whose answer it is."""
    return {"role": "assistant", "content": f"re: {body['messages'][-1]['content']}"}


class ChatStandIn:
    """Listens on loopback while the context is open."""

    def __init__(self) -> None:
        self.models = ["target"]
        #: All requests, in the order in which they came.
        self.asked: list[dict[str, Any]] = []
        self.behaviour: Behaviour = lambda _body, _number: None
        self.message_of: Callable[[dict[str, Any]], dict[str, Any]] = echo
        self.finish_reason = "stop"
        self.retry_after: str | None = None
        #: What it says its answers are compressed with; they never are.
        self.encoding: str | None = None
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody listens any more."""
        self._http.shutdown()
        self._http.server_close()

    def last_turns(self) -> list[str]:
        """What was asked, request by request."""
        with self._lock:
            return [body["messages"][-1]["content"] for body in self.asked]

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.asked.append(body)
            number = self.asked.count(body)
        if (answer := self.behaviour(body, number)) is not None:
            return answer
        choice = {"index": 0, "message": self.message_of(body), "finish_reason": self.finish_reason}
        return 200, {"choices": [choice], "usage": {"completion_tokens": 3}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._send(200, {"data": [{"id": name} for name in server.models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._send(*server.answer(body))

            def _send(self, status: int, body: dict[str, Any]) -> None:
                if not status:
                    self.close_connection = True
                    return
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                if server.retry_after is not None:
                    self.send_header("Retry-After", server.retry_after)
                if server.encoding is not None:
                    self.send_header("Content-Encoding", server.encoding)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        return Handler
