"""Every fault that the proxy injects: what it does, and what a worker must make of it.

``docs/faults.md`` holds the same table for people; a test compares the two.
"""

import threading
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from statetap_contract import FIELD, HEADER_BYTES, Prompt, dump_name

from .dump_content import Content, replace_file
from .faulty_proxy import Exchange, Injection

#: Seconds that the workers of these tests wait for an answer; others wait 15 minutes.
ANSWER_TIMEOUT_S: Final = 8.0

_HIDDEN_SIZE: Final = 64


class Decision(StrEnum):
    """What a worker does, in the words of the document."""

    AGAIN = "tries again"
    WAIT = "waits"
    GIVE_UP = "gives up at once"
    GO_ON = "goes on"
    ALONE = "waits, then tries it alone"
    STOP = "stops"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table."""

    what: str
    #: Kind of the failure; empty where it is none.
    kind: str
    decision: Decision
    inject: Injection


def _success(exchange: Exchange) -> dict[str, Any] | None:
    """The server's right answer; None when it gave another, which was passed on."""
    answer = exchange.forward()
    if not answer.is_success:
        exchange.answer(answer.status_code, answer.content)
        return None
    body: dict[str, Any] = answer.json()
    return body


def _content(change: Callable[[Content], Content]) -> Injection:
    """Dump and receipt both become something else, and agree with one another."""

    def inject(exchange: Exchange) -> None:
        if (body := _success(exchange)) is None:
            return
        proxy, key = exchange.proxy, exchange.key
        receipt = change(Content.read(proxy.dumps, key)).publish(proxy.dumps, key)
        body["meta_info"][FIELD] = [receipt.to_json()]
        exchange.answer(200, body)

    return inject


def _receipt(**changes: Any) -> Injection:
    return _content(lambda c: replace(c, receipt=replace(c.receipt, **changes)))


def _states(change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> Injection:
    return _content(lambda c: replace(c, states=change(c.states.copy())))


def _cell(value: float) -> Injection:
    def change(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        states[len(states) // 2, 70] = value
        return states

    return _states(change)


def _zeros(rows: slice, columns: slice) -> Injection:
    def change(states: npt.NDArray[Any]) -> npt.NDArray[Any]:
        states[rows, columns] = 0
        return states

    return _states(change)


def _rows(index: Callable[[int], list[int]]) -> Injection:
    """Other rows, with the ids that belong to them."""

    def change(c: Content) -> Content:
        chosen = index(len(c.token_ids))
        return replace(c, token_ids=c.token_ids[chosen], states=c.states[chosen])

    return _content(change)


def _shifted(num_rows: int) -> list[int]:
    return [*range(1, num_rows), num_rows - 1]


def _shifted_by_its_own_ids(c: Content) -> Content:
    index = _shifted(len(c.token_ids))
    ids = c.token_ids[index]
    digest = Prompt(array("i", ids.tolist()), ()).token_digest()
    return replace(
        c,
        receipt=replace(c.receipt, token_digest=digest),
        token_ids=ids,
        states=c.states[index],
    )


def _without_layer(c: Content) -> Content:
    receipt = replace(c.receipt, layers=c.receipt.layers[1:])
    return replace(c, receipt=receipt, states=c.states[:, _HIDDEN_SIZE:])


def _as_float16(c: Content) -> Content:
    receipt = replace(c.receipt, dtype="float16")
    return replace(c, receipt=receipt, states=c.states.astype("<f2"))


def _swapped(*, is_relabelled: bool) -> Injection:
    """The dump of another prompt of the same length, which is captured for it."""

    def inject(exchange: Exchange) -> None:
        proxy, key = exchange.proxy, exchange.key
        if (body := _success(exchange)) is None:
            return
        own = Content.read(proxy.dumps, key)
        other_key = key[::-1]
        other_body = exchange.body | {
            "rid": other_key,
            "input_ids": exchange.body["input_ids"][::-1],
        }
        params = exchange.body["sampling_params"]
        asked = params["custom_params"][FIELD] | {"key": other_key}
        other_body["sampling_params"] = params | {"custom_params": {FIELD: asked}}
        proxy.upstream.post("/generate", json=other_body).raise_for_status()
        other = Content.read(proxy.dumps, other_key)
        (proxy.dumps / dump_name(other_key)).unlink()
        if is_relabelled:
            other = replace(other, receipt=replace(own.receipt, attempt=other.receipt.attempt))
        receipt = other.publish(proxy.dumps, key)
        body["meta_info"][FIELD] = [receipt.to_json()]
        exchange.answer(200, body)

    return inject


def _file(change: Callable[[bytes], bytes]) -> Injection:
    """The file is damaged after it was published; the answer is right."""

    def inject(exchange: Exchange) -> None:
        if (body := _success(exchange)) is None:
            return
        path = exchange.proxy.dumps / dump_name(exchange.key)
        replace_file(path, change(path.read_bytes()))
        exchange.answer(200, body)

    return inject


def _flipped(place: Callable[[bytes], int]) -> Injection:
    def change(raw: bytes) -> bytes:
        flipped = bytearray(raw)
        flipped[place(raw)] ^= 1
        return bytes(flipped)

    return _file(change)


def _deleted(exchange: Exchange) -> None:
    if (body := _success(exchange)) is None:
        return
    (exchange.proxy.dumps / dump_name(exchange.key)).unlink()
    exchange.answer(200, body)


def _body(change: Callable[[dict[str, Any]], Any]) -> Injection:
    """The dump is right; the body of the answer is not."""

    def inject(exchange: Exchange) -> None:
        if (body := _success(exchange)) is not None:
            exchange.answer(200, change(body))

    return inject


def _meta(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Injection:
    return _body(lambda body: body | {"meta_info": change(body["meta_info"])})


def _says(status: int, headers: dict[str, str] | None = None) -> Injection:
    """The server is not even asked."""
    return lambda exchange: exchange.answer(status, {"message": "injected"}, headers)


def _late(exchange: Exchange) -> None:
    if (body := _success(exchange)) is not None:
        time.sleep(ANSWER_TIMEOUT_S + 1)
        exchange.answer(200, body)


def _lost(exchange: Exchange) -> None:
    exchange.forward()
    exchange.cut()


def _half(exchange: Exchange) -> None:
    content = exchange.forward().content
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    exchange.send(head + content[: len(content) // 2])


def _twice(exchange: Exchange) -> None:
    if (body := _success(exchange)) is not None:
        exchange.answer(200, body)
        exchange.answer(200, body)


def _trickle(exchange: Exchange) -> None:
    content = exchange.forward().content
    exchange.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\n\r\n".encode())
    for place in range(len(content)):
        exchange.send(content[place : place + 1])
        time.sleep(0.5)


def _flood(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    for _ in range(10_000):
        exchange.send(b" " * 100_000)


def _vanishes(exchange: Exchange) -> None:
    """As a server that is killed and comes again after some seconds."""
    exchange.proxy.close_door()
    exchange.cut()
    threading.Timer(3, exchange.proxy.open_door).start()


def _captures_others(exchange: Exchange) -> None:
    """As a server that was started anew with other layers."""
    exchange.proxy.change_info = lambda capture: (
        capture | {"spec": capture["spec"] | {"layers": [1, 4, 5]}}
    )
    exchange.answer(400, {"message": "injected"})


#: Nothing in a worker can tell: ids, checksum and receipt are as they would be.
UNSEEN: Final = _states(lambda states: np.roll(states, 1, axis=0))


def _table(*rows: tuple[str, str, Decision, Injection]) -> tuple[Fault, ...]:
    return tuple(Fault(*row) for row in rows)


AGAIN, WAIT = Decision.AGAIN, Decision.WAIT

FAULTS: Final = _table(
    # Receipt and dump agree with one another, and are not of this prompt, spec or server.
    ("fewer rows", "receipt-num-tokens", AGAIN, _rows(lambda n: [*range(n - 1)])),
    ("more rows", "receipt-num-tokens", AGAIN, _rows(lambda n: [*range(n), n - 1])),
    ("rows shifted by one, with their ids", "dump-token-ids", AGAIN, _rows(_shifted)),
    (
        "the same, in the receipt too",
        "receipt-token-digest",
        AGAIN,
        _content(_shifted_by_its_own_ids),
    ),
    ("another prompt's dump", "receipt-key", AGAIN, _swapped(is_relabelled=False)),
    ("the same under this prompt's name", "dump-token-ids", AGAIN, _swapped(is_relabelled=True)),
    ("a layer less", "receipt-layers", AGAIN, _content(_without_layer)),
    ("other layers", "receipt-layers", AGAIN, _receipt(layers=(1, 4, 5))),
    ("the last state before the norm", "receipt-norm", AGAIN, _receipt(norm="pre")),
    ("narrower rows", "receipt-row-width", AGAIN, _states(lambda s: s[:, 1:])),
    ("another dtype", "receipt-dtype", AGAIN, _content(_as_float16)),
    ("another capture spec", "receipt-spec-digest", AGAIN, _receipt(spec_digest="0" * 32)),
    ("another host", "receipt-host", AGAIN, _receipt(host="elsewhere")),
    ("another path", "receipt-path", AGAIN, _receipt(path="/dev/shm/other.safetensors")),
    ("another SGLang", "receipt-sglang-version", AGAIN, _receipt(sglang_version="0.5.22")),
    ("another patch", "receipt-patch-version", AGAIN, _receipt(patch_version="0.0.1")),
    # Values that no model computes, with a right checksum.
    ("a NaN", "states-not-finite", AGAIN, _cell(np.nan)),
    ("an infinity", "states-not-finite", AGAIN, _cell(-np.inf)),
    ("a row of zeros", "states-zero-row", AGAIN, _zeros(slice(3, 4), slice(None))),
    (
        "a layer of zeros",
        "states-zero-row",
        AGAIN,
        _zeros(slice(None), slice(_HIDDEN_SIZE, 2 * _HIDDEN_SIZE)),
    ),
    # The file is not what the server wrote.
    ("a bit of the states flipped", "dump-checksum", AGAIN, _flipped(lambda _: HEADER_BYTES + 700)),
    ("a bit of the ids flipped", "dump-token-ids", AGAIN, _flipped(lambda raw: len(raw) - 8)),
    (
        "a bit of the header flipped",
        "dump-receipt",
        AGAIN,
        _flipped(lambda raw: raw.index(b"states_xxh3") + 20),
    ),
    ("a bit of the header's blanks flipped", "dump-unreadable", AGAIN, _flipped(lambda _: 4000)),
    ("the file cut", "dump-cut", AGAIN, _file(lambda raw: raw[: len(raw) // 2])),
    ("the file cut in its header", "dump-cut", AGAIN, _file(lambda raw: raw[:100])),
    ("the file empty", "dump-cut", AGAIN, _file(lambda _: b"")),
    ("bytes behind the file's end", "dump-cut", AGAIN, _file(lambda raw: raw + b"\0")),
    ("the file gone", "dump-missing", AGAIN, _deleted),
    # The answer is none, or says nothing.
    ("no JSON", "receipt-unreadable", AGAIN, _body(lambda _: b"<html>")),
    ("brackets without end", "receipt-unreadable", AGAIN, _body(lambda _: b"[" * 100_000)),
    ("an empty receipt", "receipt-unreadable", AGAIN, _meta(lambda m: m | {FIELD: [{}]})),
    ("two receipts", "receipt-unreadable", AGAIN, _meta(lambda m: m | {FIELD: 2 * m[FIELD]})),
    (
        "a count as text in the receipt",
        "receipt-unreadable",
        AGAIN,
        _meta(lambda m: m | {FIELD: [m[FIELD][0] | {"num_tokens": "5"}]}),
    ),
    (
        "200 with an abort inside",
        "request-aborted",
        AGAIN,
        _meta(lambda _: {"finish_reason": {"type": "abort", "message": "injected"}}),
    ),
    ("an answer without end", "answer-too-long", AGAIN, _flood),
    ("half an answer", "answer-lost", AGAIN, _half),
    ("the connection cut, the dump published", "answer-lost", AGAIN, _lost),
    ("the connection cut, nothing computed", "answer-lost", AGAIN, Exchange.cut),
    ("the answer late", "server-timeout", AGAIN, _late),
    ("no answer", "server-timeout", AGAIN, Exchange.outwait),
    ("an answer that trickles", "server-timeout", AGAIN, _trickle),
    ("the answer twice", "", Decision.GO_ON, _twice),
    # Statuses.
    ("400", "request-refused", Decision.GIVE_UP, _says(400)),
    ("409", "key-in-flight", WAIT, _says(409)),
    ("429, Retry-After", "server-busy", WAIT, _says(429, {"Retry-After": "1"})),
    ("500", "server-error", AGAIN, _says(500)),
    ("502", "gateway-error", AGAIN, _says(502)),
    ("503", "server-busy", WAIT, _says(503)),
    ("503, Retry-After", "server-busy", WAIT, _says(503, {"Retry-After": "1"})),
    ("507", "dumps-full", WAIT, _says(507)),
)

#: What befalls the server, and with it all prompts in flight.
LOST: Final = Fault("the connection cut, the server gone", "server-lost", Decision.ALONE, _vanishes)
GONE: Final = Fault("the connection refused", "server-unreachable", WAIT, _vanishes)

STOPS: Final = _table(
    (
        "200 without a receipt",
        "server-unpatched",
        Decision.STOP,
        _meta(lambda meta: {name: value for name, value in meta.items() if name != FIELD}),
    ),
    ("400, the server of another spec", "spec-differs", Decision.STOP, _captures_others),
)
