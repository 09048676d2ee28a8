"""What each answer of a server means."""

import json
from typing import Any

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
from statetap_worker.asking.exchange import (
    BrokenOffError,
    LateError,
    Peer,
    UnreachableError,
    WholeAnswer,
)
from statetap_worker.asking.server import Server

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

Reply = WholeAnswer | Exception


def reply(status: int, body: Any, retry_after: str = "") -> WholeAnswer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return WholeAnswer(status, content, retry_after)


#: How the server answers a handshake.
WELL = reply(200, {"internal_states": [{FIELD: INFO}]})


class FakePeer(Peer):
    """Gives one reply to a handshake and one to a prompt; keeps what it was asked."""

    def __init__(self, says: Reply, answers: Reply) -> None:
        super().__init__("http://s")
        self.replies = {"/server_info": says, "/generate": answers}
        self.seen: list[tuple[str, str, bytes | None]] = []

    def exchange(
        self, method: str, path: str, body: bytes | None, *, timeout_s: float
    ) -> WholeAnswer:
        assert timeout_s > 0
        self.seen.append((method, path, body))
        chosen = self.replies[path]
        if isinstance(chosen, Exception):
            raise chosen
        return chosen


def server_that(*, says: Reply = WELL, answers: Reply = WELL) -> Server:
    """A server that gives one reply to a handshake and one to a prompt."""
    return Server("http://s", FakePeer(says, answers))


def test_the_request_is_the_documented_one(dumps: DumpBuilder) -> None:
    """The sample key is the request id, and the prompt goes as ids."""
    receipt = dumps.write()
    peer = FakePeer(WELL, reply(200, {"meta_info": {FIELD: [receipt.to_json()]}}))
    assert Server("http://s", peer).capture(JOB) == receipt
    ((method, path, content),) = peer.seen
    assert (method, path) == ("POST", "/generate")
    assert content is not None
    body = json.loads(content)
    assert body["rid"] == JOB.key
    assert body["input_ids"] == [5, 6, 7, 8, 9]
    assert body["sampling_params"]["custom_params"] == {
        "statetap": {"key": JOB.key, "num_tokens": 5, "spec_digest": SPEC.digest}
    }


@pytest.mark.parametrize(
    ("answer", "error", "kind"),
    [
        (reply(400, {"error": {"message": "too long"}}), RejectError, "request-refused"),
        (reply(404, {}), RejectError, "request-refused"),
        (reply(408, {}), TransientError, "request-aborted"),
        (reply(409, {"message": "in flight"}), TransientError, "key-in-flight"),
        (reply(429, {}), TransientError, "server-busy"),
        (reply(499, {}), TransientError, "request-aborted"),
        (reply(302, b""), TransientError, "server-error"),
        (reply(500, b"<html>"), TransientError, "server-error"),
        (reply(500, b"[" * 100_000), TransientError, "server-error"),
        (reply(502, b""), TransientError, "gateway-error"),
        (reply(503, {}), TransientError, "server-busy"),
        (reply(504, b""), TransientError, "gateway-error"),
        (reply(507, {}), TransientError, "dumps-full"),
        (
            reply(200, {"meta_info": {"finish_reason": {"type": "abort", "message": "bye"}}}),
            TransientError,
            "request-aborted",
        ),
        (reply(200, {"meta_info": {}}), StopError, "server-unpatched"),
        (reply(200, b"no json"), MismatchError, "receipt-unreadable"),
        (reply(200, b"\xff\xfe"), MismatchError, "receipt-unreadable"),
        (reply(200, b"[" * 100_000), MismatchError, "receipt-unreadable"),
        (reply(200, []), MismatchError, "receipt-unreadable"),
        (reply(200, {"meta_info": None}), MismatchError, "receipt-unreadable"),
        (reply(200, {"meta_info": {FIELD: []}}), MismatchError, "receipt-unreadable"),
        (reply(200, {"meta_info": {FIELD: [{}]}}), MismatchError, "receipt-unreadable"),
        (reply(200, {"meta_info": {FIELD: [{}, {}]}}), MismatchError, "receipt-unreadable"),
        (MismatchError("answer-too-long", "m"), MismatchError, "answer-too-long"),
        (UnreachableError("refused"), TransientError, "server-unreachable"),
        (BrokenOffError("half a body"), TransientError, "answer-lost"),
        (LateError("late"), TransientError, "server-timeout"),
    ],
)
def test_failures_have_their_kinds(answer: Reply, error: type[StatetapError], kind: str) -> None:
    """Retry, give up or stop follows from the class; the ledger shows the kind."""
    with pytest.raises(error) as caught:
        server_that(answers=answer).capture(JOB)
    assert caught.value.kind == kind


@pytest.mark.parametrize("says", [reply(503, b""), UnreachableError("refused")])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (BrokenOffError("reset"), "server-lost"),
        (LateError("late"), "server-lost"),
        (reply(500, b""), "server-lost"),
        (reply(502, b""), "server-lost"),
        (reply(400, b""), "server-unreachable"),
        (reply(503, b""), "server-busy"),
    ],
)
def test_no_prompt_is_blamed_where_no_server_is(answer: Reply, says: Reply, kind: str) -> None:
    """A refusal of everything is no refusal of this prompt."""
    with pytest.raises(TransientError) as caught:
        server_that(answers=answer, says=says).capture(JOB)
    assert caught.value.kind == kind


def test_a_server_of_another_spec_refuses_nothing_for_good() -> None:
    """It was exchanged behind the worker's back, and refuses each prompt: the worker stops."""
    other = INFO | {"spec": SPEC.to_json() | {"layers": [2, 3]}}
    says = reply(200, {"internal_states": [{FIELD: other}]})
    with pytest.raises(StopError) as caught:
        server_that(answers=reply(400, {"message": "other spec"}), says=says).capture(JOB)
    assert caught.value.kind == "spec-differs"


def test_an_unpatched_server_refuses_nothing_for_good() -> None:
    """It may not even know the path."""
    says = reply(200, {"internal_states": [{}]})
    with pytest.raises(StopError) as caught:
        server_that(answers=reply(404, b""), says=says).capture(JOB)
    assert caught.value.kind == "server-unpatched"


def test_the_servers_reason_reaches_the_ledger() -> None:
    """SGLang says why it refuses; people need to read it."""
    answer = reply(400, {"error": {"message": "too long"}})
    with pytest.raises(RejectError, match="answered 400: too long"):
        server_that(answers=answer).capture(JOB)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("\xb2", None), ("-1", None)],
)
def test_retry_after_is_kept(value: str, expected: float | None) -> None:
    """Seconds are honoured, the date form is not understood, nor are digits that are no number."""
    with pytest.raises(TransientError) as caught:
        server_that(answers=reply(503, {}, value)).capture(JOB)
    assert caught.value.retry_after_s == expected


def test_the_handshake_gives_the_spec() -> None:
    """Of all schedulers, when they agree."""
    state = {FIELD: INFO}
    says = reply(200, {"internal_states": [state, state]})
    assert server_that(says=says).handshake().spec == SPEC


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        (reply(200, {"internal_states": [{}]}), "server-unpatched"),
        (reply(200, []), "server-unpatched"),
        (reply(200, {"internal_states": [{FIELD: INFO | {"x": 1}}]}), "server-unpatched"),
        (
            reply(
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
            reply(200, {"internal_states": [{FIELD: INFO | {"is_writer_alive": False}}]}),
            "server-writer-dead",
        ),
        (reply(503, b""), "server-not-ready"),
        (reply(401, b""), "server-key"),
        (reply(200, b"<html>"), "server-unreachable"),
        (reply(200, b"[" * 100_000), "server-unreachable"),
        (MismatchError("answer-too-long", "m"), "server-unreachable"),
        (UnreachableError("refused"), "server-unreachable"),
    ],
)
def test_a_failed_handshake_has_its_kind(says: Reply, kind: str) -> None:
    """No work is taken before the server has proven that it captures."""
    with pytest.raises(MissingError) as caught:
        server_that(says=says).handshake()
    assert caught.value.kind == kind


def test_waiting_ends_at_once_where_time_does_not_help() -> None:
    """An unpatched server will not patch itself."""
    with pytest.raises(MissingError, match="captures nothing"):
        server_that(says=reply(200, {"internal_states": [{}]})).wait_until_ready(3600)


def test_waiting_ends_when_the_time_is_up() -> None:
    """A server that never comes is an error in the end."""
    with pytest.raises(MissingError, match="no SGLang server"):
        server_that(says=UnreachableError("refused")).wait_until_ready(-1)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_is_no_matter_of_time(status: int) -> None:
    """It says where the key belongs; a worker at work stops, and blames no prompt."""
    refusal = reply(status, {"error": "Unauthorized"})
    with pytest.raises(MissingError, match="STATETAP_API_KEY") as missing:
        server_that(says=refusal).wait_until_ready(60)
    assert missing.value.kind == "server-key"
    with pytest.raises(StopError, match="STATETAP_API_KEY") as stop:
        server_that(says=refusal, answers=refusal).capture(JOB)
    assert stop.value.kind == "server-key"
