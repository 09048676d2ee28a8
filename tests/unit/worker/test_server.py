"""What each answer of a server means."""

import json
from typing import Any

import httpx
import pytest
from statetap_contract import (
    FIELD,
    MismatchError,
    MissingError,
    RejectError,
    StatetapError,
    StopError,
    TransientError,
)
from statetap_worker.server import Server

from .conftest import JOB, SPEC, DumpBuilder

INFO = {
    "spec": SPEC.to_json(),
    "dumps": "/dumps",
    "host": "h",
    "raw_layer_ids": [0, 2],
    "vocab_size": 512,
    "context_length": 4096,
    "sglang_version": "0.5.23",
    "patch_version": "0.1.0",
    "is_writer_alive": True,
    "num_published": 0,
    "num_failed": 0,
    "num_hook_errors": 0,
}


def answering(status: int, body: Any, headers: dict[str, str] | None = None) -> Server:
    """A server that gives one and the same answer."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=content, headers=headers)

    return Server("http://s", httpx.MockTransport(answer))


def failing(error: Exception) -> Server:
    def fail(_request: httpx.Request) -> httpx.Response:
        raise error

    return Server("http://s", httpx.MockTransport(fail))


def test_the_request_is_the_documented_one(dumps: DumpBuilder) -> None:
    """The sample key is the request id, and the prompt goes as ids."""
    seen: list[httpx.Request] = []
    receipt = dumps.write()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"meta_info": {FIELD: [receipt.to_json()]}})

    assert Server("http://s", httpx.MockTransport(answer)).capture(JOB) == receipt
    body = json.loads(seen[0].content)
    assert (seen[0].method, seen[0].url.path) == ("POST", "/generate")
    assert body["rid"] == JOB.key
    assert body["input_ids"] == [5, 6, 7, 8, 9]
    assert body["sampling_params"]["custom_params"] == {
        "statetap": {"key": JOB.key, "num_tokens": 5, "spec_digest": SPEC.digest}
    }


@pytest.mark.parametrize(
    ("server", "error", "kind"),
    [
        (answering(400, {"error": {"message": "too long"}}), RejectError, "request-refused"),
        (answering(404, {}), RejectError, "request-refused"),
        (answering(409, {"message": "in flight"}), TransientError, "key-in-flight"),
        (answering(429, {}), TransientError, "request-aborted"),
        (answering(499, {}), TransientError, "request-aborted"),
        (answering(500, b"<html>"), TransientError, "server-error"),
        (answering(503, {}), TransientError, "server-busy"),
        (answering(507, {}), TransientError, "dumps-full"),
        (
            answering(200, {"meta_info": {"finish_reason": {"type": "abort", "message": "bye"}}}),
            TransientError,
            "request-aborted",
        ),
        (answering(200, {"meta_info": {}}), StopError, "server-unpatched"),
        (answering(200, b"no json"), MismatchError, "receipt-unreadable"),
        (answering(200, []), MismatchError, "receipt-unreadable"),
        (answering(200, {"meta_info": None}), MismatchError, "receipt-unreadable"),
        (answering(200, {"meta_info": {FIELD: []}}), MismatchError, "receipt-unreadable"),
        (answering(200, {"meta_info": {FIELD: [{}]}}), MismatchError, "receipt-unreadable"),
        (failing(httpx.ConnectError("refused")), TransientError, "server-unreachable"),
        (failing(httpx.ReadError("reset")), TransientError, "server-unreachable"),
        (failing(httpx.ReadTimeout("late")), TransientError, "server-timeout"),
    ],
)
def test_failures_have_their_kinds(server: Server, error: type[StatetapError], kind: str) -> None:
    """Retry, give up or stop follows from the class; the ledger shows the kind."""
    with pytest.raises(error) as caught:
        server.capture(JOB)
    assert caught.value.kind == kind


def test_the_servers_reason_reaches_the_ledger() -> None:
    """SGLang says why it refuses; people need to read it."""
    with pytest.raises(RejectError, match="answered 400: too long"):
        answering(400, {"error": {"message": "too long"}}).capture(JOB)


def test_retry_after_is_kept() -> None:
    """Seconds are honoured, the date form is not understood."""
    for value, expected in (("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)):
        with pytest.raises(TransientError) as caught:
            answering(503, {}, {"Retry-After": value}).capture(JOB)
        assert caught.value.retry_after_s == expected


def test_the_handshake_gives_the_spec() -> None:
    """Of all schedulers, when they agree."""
    state = {FIELD: INFO}
    assert answering(200, {"internal_states": [state, state]}).handshake().spec == SPEC


@pytest.mark.parametrize(
    ("server", "kind"),
    [
        (answering(200, {"internal_states": [{}]}), "server-unpatched"),
        (answering(200, []), "server-unpatched"),
        (answering(200, {"internal_states": [{FIELD: INFO | {"x": 1}}]}), "server-unpatched"),
        (
            answering(
                200,
                {
                    "internal_states": [
                        {FIELD: INFO},
                        {FIELD: INFO | {"spec": SPEC.to_json() | {"layers": [2, 3]}}},
                    ]
                },
            ),
            "server-inconsistent",
        ),
        (
            answering(200, {"internal_states": [{FIELD: INFO | {"is_writer_alive": False}}]}),
            "server-writer-dead",
        ),
        (answering(503, b""), "server-not-ready"),
        (answering(200, b"<html>"), "server-unreachable"),
        (failing(httpx.ConnectError("refused")), "server-unreachable"),
    ],
)
def test_a_failed_handshake_has_its_kind(server: Server, kind: str) -> None:
    """No work is taken before the server has proven that it captures."""
    with pytest.raises(MissingError) as caught:
        server.handshake()
    assert caught.value.kind == kind


def test_waiting_ends_at_once_where_time_does_not_help() -> None:
    """An unpatched server will not patch itself."""
    with pytest.raises(MissingError, match="captures nothing"):
        answering(200, {"internal_states": [{}]}).wait_until_ready(3600)


def test_waiting_ends_when_the_time_is_up() -> None:
    """A server that never comes is an error in the end."""
    with pytest.raises(MissingError, match="no SGLang server"):
        failing(httpx.ConnectError("refused")).wait_until_ready(-1)
