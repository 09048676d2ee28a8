"""What a server says, and all it may say instead."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from statetap_contract import CaptureSpec, ServerCapture, StatetapError
from statetap_producer.planning.handshake import ask_server

SPEC = CaptureSpec("tiny", "ab" * 16, (2, 4, 5), "post", 64, "bfloat16")
CAPTURE = ServerCapture(
    spec=SPEC,
    dumps="/dev/shm/dumps",
    host="here",
    raw_layer_ids=(1, 3, 4),
    vocab_size=380,
    context_length=256,
    sglang_version="0.5.23",
    patch_version="0.1.0",
    is_writer_alive=True,
    num_published=0,
    num_failed=0,
    num_hook_errors=0,
)


class InfoServer(HTTPServer):
    """Answers /server_info with what a test puts into ``info``, and 404 elsewhere."""

    info: bytes = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def show(self, *captures: ServerCapture) -> None:
        states = [{"load": 1, "statetap": capture.to_json()} for capture in captures]
        self.info = json.dumps({"version": "0.5.23", "internal_states": states}).encode()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, InfoServer)
        body = self.server.info if self.path == "/server_info" else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def info_server() -> Iterator[InfoServer]:
    with InfoServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_capture_facts_are_read(info_server: InfoServer) -> None:
    """A patched server's own facts come back, a slash after its address or not."""
    info_server.show(CAPTURE, CAPTURE)
    assert ask_server(info_server.url) == ask_server(info_server.url + "/") == CAPTURE


def test_a_proxy_is_not_asked(info_server: InfoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's proxy does not stand between statetap and its server."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    info_server.show(CAPTURE)
    assert ask_server(info_server.url) == CAPTURE


def test_schedulers_that_differ_are_refused(info_server: InfoServer) -> None:
    """A server whose parts capture different things serves no run."""
    other = ServerCapture.from_json(
        CAPTURE.to_json() | {"spec": SPEC.to_json() | {"layers": [3, 4, 5]}}
    )
    info_server.show(CAPTURE, other)
    with pytest.raises(StatetapError) as caught:
        ask_server(info_server.url)
    assert (caught.value.kind, caught.value.exit_code) == ("server-inconsistent", 3)


@pytest.mark.parametrize(
    ("info", "kind"),
    [
        (b"", "server-unreachable"),
        (b"<html>", "server-unreachable"),
        (b"{}", "server-unpatched"),
        (b'{"internal_states": [{"load": 1}]}', "server-unpatched"),
        (b'{"internal_states": [{"statetap": {"spec": 1}}]}', "server-unpatched"),
    ],
)
def test_any_other_server_is_named(info_server: InfoServer, info: bytes, kind: str) -> None:
    """No such page, no JSON, no patch, another patch: a sentence with the address."""
    info_server.info = info
    with pytest.raises(StatetapError, match=info_server.url) as caught:
        ask_server(info_server.url)
    assert (caught.value.kind, caught.value.exit_code) == (kind, 3)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://127.0.0.1:1", "server-unreachable"),
        ("127.0.0.1:30000", "server-url"),
        ("ftp://127.0.0.1", "server-url"),
        ("http://x:port", "server-url"),
        ("", "server-url"),
    ],
)
def test_an_address_without_a_server_is_named(url: str, kind: str) -> None:
    """An address that is wrong, or where nobody listens, is a sentence."""
    with pytest.raises(StatetapError) as caught:
        ask_server(url)
    assert caught.value.kind == kind
