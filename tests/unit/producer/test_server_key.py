"""Every request of the producer shows the server's key, and a refusal says where it belongs."""

import json
import threading
from array import array
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.generating.chat_client import Sampling
from statetap_producer.generating.generate import GenerateRequest, generate
from statetap_producer.planning.handshake import ask_server
from statetap_producer.planning.prefill_rate import measure_prefill

from .chat_stand_in import ChatStandIn
from .test_handshake import CAPTURE

KEY = "s3cret-key"


class KeyedServer(ThreadingHTTPServer):
    """Wants a key. What it answers then is enough for each kind of request."""

    def __init__(self, chat: ChatStandIn) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.chat = chat


class _Handler(BaseHTTPRequestHandler):
    """As SGLang does it: 401 without the key."""

    server: KeyedServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer({"data": [{"id": "target"}]})
        else:
            self._answer({"internal_states": [{"statetap": CAPTURE.to_json()}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(self.server.chat.answer(body)[1] if "messages" in body else {})

    def _answer(self, body: object) -> None:
        is_known = self.headers["Authorization"] == f"Bearer {KEY}"
        content = json.dumps(body if is_known else {"error": "Unauthorized"}).encode()
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    """Address of a server that wants a key."""
    with ChatStandIn() as chat, KeyedServer(chat) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def hand_shake(url: str, _folder: Path) -> None:
    assert ask_server(url) == CAPTURE


def have_answered(url: str, folder: Path) -> None:
    row = {"messages": [{"role": "user", "content": "one"}]}
    (folder / "chats.jsonl").write_text(json.dumps(row) + "\n")
    request = GenerateRequest(
        dataset=str(folder / "chats.jsonl"),
        out=folder / "answered.jsonl",
        server=url,
        model=None,
        sampling=Sampling(10, None),
        is_replacing=False,
        num_in_flight=1,
        is_strict=True,
    )
    assert generate(request, lambda _: None).progress.num_answers == 1


@pytest.mark.parametrize("ask", [hand_shake, have_answered])
def test_a_server_that_wants_a_key_gets_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str, Path], None]
) -> None:
    """Without the right one it is one sentence, which does not show the wrong one."""
    for environment in ({}, {"STATETAP_API_KEY": "wr0ng"}):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StatetapError, match=f"{url} .* STATETAP_API_KEY") as caught:
            ask(url, tmp_path)
        assert (caught.value.kind, caught.value.exit_code) == ("server-key", 3)
        assert "wr0ng" not in caught.value.message
    monkeypatch.setenv("STATETAP_API_KEY", KEY)
    ask(url, tmp_path)


def test_the_rate_is_measured_with_the_key(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handshake has proven the key by then."""
    monkeypatch.setenv("STATETAP_API_KEY", KEY)
    assert measure_prefill(url, [Prompt(array("i", [1, 2]), ())], vocab_size=9).num_tokens == 2
