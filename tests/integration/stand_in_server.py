"""A server that speaks the contract without a model: for what a real one cannot be made to do.

It writes real dumps. The acceptance tests run the same worker against real SGLang.
"""

import json
import threading
from array import array
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xxhash
from statetap_contract import (
    FIELD,
    HEADER_BYTES,
    CaptureSpec,
    Prompt,
    Receipt,
    ServerCapture,
    dump_name,
    encode_header,
    layout_of,
)
from statetap_worker.proving.canary import canary_prompt

SPEC = CaptureSpec("stand-in", "r", (1, 2), "post", 16, "float32")

#: Status and body for one request, or None for a right answer.
Behaviour = Callable[[str, int], tuple[int, dict[str, Any]] | None]


def states_of(token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """[num_tokens, 48]: what this model computes; every element is a function of its token."""
    columns = np.arange(1, SPEC.row_width + 1, dtype=np.float32)
    states: npt.NDArray[np.float32] = (token_ids[:, None] + 1) * columns
    return states.astype(np.float32)


class StandInServer:
    """Listens on loopback while the context is open."""

    def __init__(self, dumps: Path) -> None:
        self.dumps = dumps
        self.spec = SPEC
        self.host = "stand-in"
        self.sglang_version = "0"
        #: What the model computes.
        self.states_of: Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]] = states_of
        #: How often each key was asked for. Canaries are counted by themselves.
        self.asked: dict[str, int] = {}
        self.num_canaries = 0
        #: Decides by key and attempt (from 1); the default is to be right.
        self.behaviour: Behaviour = lambda _key, _attempt: None
        #: The same for canaries, whoever asks for them.
        self.canary_behaviour: Behaviour = lambda _key, _attempt: None
        #: Prompts answered wrongly on purpose, by key: the ids to claim.
        self.wrong_ids: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._http.server_close()

    def server_info(self) -> dict[str, Any]:
        return {"internal_states": [{FIELD: self.capture().to_json()}]}

    def capture(self) -> ServerCapture:
        return ServerCapture(
            spec=self.spec,
            dumps=str(self.dumps),
            host=self.host,
            raw_layer_ids=(0, 1),
            vocab_size=1000,
            context_length=10_000,
            sglang_version=self.sglang_version,
            patch_version="0",
            is_writer_alive=True,
            num_published=0,
            num_failed=0,
            num_hook_errors=0,
        )

    def generate(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        key, ids = body["rid"], body["input_ids"]
        is_canary = ids == canary_prompt(self.capture()).token_ids.tolist()
        with self._lock:
            if is_canary:
                attempt = self.num_canaries = self.num_canaries + 1
            else:
                attempt = self.asked[key] = self.asked.get(key, 0) + 1
        behaviour = self.canary_behaviour if is_canary else self.behaviour
        if (answer := behaviour(key, attempt)) is not None:
            return answer
        with self._lock:
            fed = self.wrong_ids.pop(key, ids)
        receipt = self._dump(key, ids, fed, attempt)
        return 200, {"meta_info": {"finish_reason": None, FIELD: [receipt.to_json()]}}

    def _dump(self, key: str, ids: list[int], fed: list[int], attempt: int) -> Receipt:
        token_ids = np.array(fed, np.int32)
        states = self.states_of(token_ids)
        receipt = Receipt(
            key=key,
            attempt=str(attempt),
            path=str(self.dumps / dump_name(key)),
            host=self.host,
            spec_digest=self.spec.digest,
            num_tokens=len(ids),
            row_width=self.spec.row_width,
            dtype=self.spec.dtype,
            layers=self.spec.layers,
            norm=self.spec.norm,
            token_digest=Prompt(array("i", ids), ()).token_digest(),
            states_xxh3=xxhash.xxh3_64_hexdigest(states.tobytes()),
            sglang_version=self.sglang_version,
            patch_version="0",
        )
        layout = layout_of(receipt)
        content = bytearray(layout.file_bytes)
        content[:HEADER_BYTES] = encode_header(receipt)
        content[layout.states_offset : layout.token_ids_offset] = states.tobytes()
        content[layout.token_ids_offset :] = token_ids.tobytes()
        temporary = self.dumps / f".{key}-{attempt}"
        temporary.write_bytes(content)
        temporary.rename(self.dumps / dump_name(key))
        return receipt

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Headers and body are two writes; the second would wait for the first one's receipt.
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                self._answer(200, server.server_info())

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                self._answer(*server.generate(json.loads(self.rfile.read(length))))

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Keep the tests' output clean."""

        return Handler
