"""The measured rate of a server."""

import json
import threading
import time
from array import array
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from statetap_contract import Prompt, StatetapError
from statetap_producer.planning import prefill_rate
from statetap_producer.planning.prefill_rate import measure_prefill


class PromptServer(ThreadingHTTPServer):
    """Answers ``/generate`` after a while, and keeps what it was asked."""

    # Sixteen connect at the same moment.
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, object]] = []
        self.answer_s = 0.0
        self.status = 200
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.num_at_once = self.most_at_once = 0
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    server: PromptServer

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.asked.append({"path": self.path} | json.loads(body))
            self.server.num_at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.num_at_once)
        time.sleep(self.server.answer_s)
        with self.server.lock:
            self.server.num_at_once -= 1
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def prompt_server() -> Iterator[PromptServer]:
    with PromptServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def prompts(num: int) -> list[Prompt]:
    return [Prompt(array("i", [999, *range(n % 7 + 1)]), ()) for n in range(num)]


def test_all_prompts_are_computed_and_counted(prompt_server: PromptServer) -> None:
    """Sixteen at a time, one token each, the first id another one of the vocabulary."""
    prompt_server.answer_s = 0.02
    asked = prompts(64)
    rate = measure_prefill(prompt_server.url + "/", asked, vocab_size=50)
    assert (rate.num_prompts, rate.num_tokens) == (64, sum(p.num_tokens for p in asked))
    assert rate.tokens_per_s == rate.num_tokens / rate.seconds
    assert rate.seconds >= 64 / 16 * 0.02
    assert prompt_server.most_at_once == 16
    got = [request["input_ids"] for request in prompt_server.asked]
    assert sorted(ids[1:] for ids in got) == sorted(list(p.token_ids[1:]) for p in asked)  # type: ignore[index]
    assert all(0 <= ids[0] < 50 for ids in got)  # type: ignore[index]
    assert {request["path"] for request in prompt_server.asked} == {"/generate"}
    assert prompt_server.asked[0]["sampling_params"] == {"max_new_tokens": 1, "temperature": 0}


def test_it_ends_after_its_time(
    prompt_server: PromptServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prompt is sent once the time is over; those that were are waited for and counted."""
    monkeypatch.setattr(prefill_rate, "_SEND_S", 0.5)
    prompt_server.answer_s = 1.0
    rate = measure_prefill(prompt_server.url, prompts(100), vocab_size=50)
    assert rate.num_prompts == len(prompt_server.asked) == 16


def test_a_server_that_refuses_is_named(prompt_server: PromptServer) -> None:
    """An error status, or nobody there, is one sentence."""
    prompt_server.status = 500
    with pytest.raises(StatetapError, match="does not compute prompts") as caught:
        measure_prefill(prompt_server.url, prompts(3), vocab_size=50)
    assert (caught.value.kind, caught.value.exit_code) == ("server-unreachable", 3)
    with pytest.raises(StatetapError, match=r"127\.0\.0\.1:1"):
        measure_prefill("http://127.0.0.1:1", prompts(3), vocab_size=50)
