"""The client of one SGLang server: handshake, and one prompt's capture."""

import json
import time
from http import HTTPStatus
from typing import Any, Final

import structlog
from statetap_contract import (
    FIELD,
    CaptureRequest,
    Job,
    MismatchError,
    MissingError,
    Receipt,
    RejectError,
    ServerCapture,
    StopError,
    TransientError,
    agreed_capture,
)
from statetap_contract.api_key import key_refused, wants_key

from statetap_worker.asking.exchange import (
    ExchangeError,
    LateError,
    Peer,
    UnreachableError,
    WholeAnswer,
)

logger = structlog.get_logger(__name__)

#: Seconds: a long prompt behind a full queue takes minutes; must stay below the visibility
#: timeout of the queue, or the message runs twice.
_ANSWER_TIMEOUT_S: Final = 900.0

#: Waits for the scheduler's turn, which a large batch delays.
_HANDSHAKE_TIMEOUT_S: Final = 30.0

#: Kinds of a failed handshake that waiting may cure.
MENDED_BY_TIME: Final = ("server-unreachable", "server-not-ready")

#: Kinds of failure for which prompt or server may be to blame, and what each is when the server
#: turns out not to be there.
_WITHOUT_SERVER: Final = {
    "answer-lost": "server-lost",
    "server-timeout": "server-lost",
    "server-error": "server-lost",
    "gateway-error": "server-lost",
    "request-refused": "server-unreachable",
}


#: Hundreds of the statuses that refuse the prompt, but for those of ``_KINDS``.
_REFUSES: Final = 4

#: What a status says that is no success.
_KINDS: Final = {
    408: "request-aborted",
    409: "key-in-flight",
    429: "server-busy",
    499: "request-aborted",
    502: "gateway-error",
    503: "server-busy",
    504: "gateway-error",
    507: "dumps-full",
}


class Server:
    """Talks to one server.

    Args:
        url: its address.
        peer: what is asked, where that is not simply the server at the address.
        api_key: shown to the server at the address.
    """

    def __init__(self, url: str, peer: Peer | None = None, *, api_key: str | None = None) -> None:
        self.url = url
        self._peer = Peer(url, api_key) if peer is None else peer

    def handshake(self) -> ServerCapture:
        """What the server captures.

        Raises:
            MissingError: kinds ``server-unreachable`` and ``server-not-ready``, which time may
                mend; ``server-key`` and those of ``agreed_capture``, which it will not.
        """
        try:
            answer = self._peer.exchange(
                "GET", "/server_info", None, timeout_s=_HANDSHAKE_TIMEOUT_S
            )
            if wants_key(answer.status):
                raise MissingError("server-key", key_refused(self.url))
            if answer.status != HTTPStatus.OK:
                raise MissingError(
                    "server-not-ready",
                    f"{self.url} answers {answer.status}; wait until its model is loaded",
                )
            server_info = answer.json()
        except ExchangeError as error:
            raise MissingError(
                "server-unreachable",
                f"no SGLang server at {self.url} ({error}); start statetap-sglang or mend the URL",
            ) from error
        except (MismatchError, ValueError) as error:
            raise MissingError(
                "server-unreachable", f"{self.url} is no SGLang server; mend the URL"
            ) from error
        return agreed_capture(server_info, self.url)

    def wait_until_ready(self, timeout_s: float) -> ServerCapture:
        """The handshake, repeated while the server is starting.

        Raises:
            MissingError: it is not ready after ``timeout_s`` seconds.
        """
        begun = time.monotonic()
        is_told = False
        while True:
            try:
                return self.handshake()
            except MissingError as error:
                if error.kind not in MENDED_BY_TIME or time.monotonic() - begun > timeout_s:
                    raise
                if not is_told:
                    logger.warning(
                        "waiting for the server",
                        server=self.url,
                        kind=error.kind,
                        why=error.message,
                    )
                    is_told = True
                time.sleep(1)

    def capture(self, job: Job, timeout_s: float = _ANSWER_TIMEOUT_S) -> Receipt:
        """Has the prompt's states dumped.

        Where prompt or server may be to blame for a failure, the prompt is only when the server
        shakes hands right afterwards.

        Args:
            job: the prompt.
            timeout_s: longest wait for the answer.

        Raises:
            TransientError: kinds ``server-unreachable``, ``server-lost``, ``server-timeout``,
                ``server-busy``, ``server-error``, ``gateway-error``, ``answer-lost``,
                ``dumps-full``, ``key-in-flight``, ``request-aborted``.
            RejectError: kind ``request-refused``: no retry can help.
            StopError: kinds ``server-unpatched``: it answered, but captured nothing;
                ``spec-differs``; ``server-key``; and those of ``agreed_capture``.
            MismatchError: kinds ``receipt-unreadable`` and ``answer-too-long``.
        """
        try:
            return self._ask(job, timeout_s)
        except (TransientError, RejectError) as failure:
            if kind := _WITHOUT_SERVER.get(failure.kind):
                self._prove_presence(job, kind, failure.message)
            raise

    def _ask(self, job: Job, timeout_s: float) -> Receipt:
        wanted = CaptureRequest(job.key, job.prompt.num_tokens, job.spec_digest)
        body = {
            "rid": job.key,
            "input_ids": job.prompt.token_ids.tolist(),
            "sampling_params": {
                # Prefill alone is wanted.
                "max_new_tokens": 0,
                "temperature": 0,
                "custom_params": {FIELD: wanted.to_json()},
            },
        }
        request = json.dumps(body, separators=(",", ":")).encode()
        try:
            answer = self._peer.exchange("POST", "/generate", request, timeout_s=timeout_s)
        except UnreachableError as error:
            raise TransientError("server-unreachable", f"{self.url}: {error}") from error
        except LateError as error:
            raise TransientError(
                "server-timeout", f"{self.url} did not answer in {timeout_s:.0f} s"
            ) from error
        except ExchangeError as error:
            raise TransientError(
                "answer-lost", f"{self.url} had the prompt in hand and broke off: {error}"
            ) from error
        if answer.status != HTTPStatus.OK:
            raise _failure(answer)
        return _receipt(answer, self.url)

    def _prove_presence(self, job: Job, kind: str, failure: str) -> None:
        """Shakes hands after a failure.

        Raises:
            TransientError: of this kind: the server is not there.
            StopError: it is, but captures nothing, or otherwise than the job wants it.
        """
        try:
            capture = self.handshake()
        except MissingError as error:
            if error.kind in MENDED_BY_TIME:
                raise TransientError(kind, f"{failure}; then {error}") from error
            raise StopError(error.kind, error.message) from error
        if capture.spec.digest != job.spec_digest:
            raise StopError(
                "spec-differs",
                f"job {job.key} wants spec {job.spec_digest}, the server at {self.url} now "
                f"captures {capture.spec.digest}",
            )


def _failure(answer: WholeAnswer) -> TransientError | RejectError:
    """The error for an answer that is no success."""
    text = f"the server answered {answer.status}: {_message(answer)}"
    kind = _KINDS.get(answer.status, "server-error")
    if answer.status not in _KINDS and answer.status // 100 == _REFUSES:
        return RejectError("request-refused", text)
    return TransientError(kind, text, _retry_after_s(answer))


def _receipt(answer: WholeAnswer, url: str) -> Receipt:
    """The receipt in a success answer; there are several ways for one not to be there."""
    try:
        meta_info: dict[str, Any] = answer.json()["meta_info"]
        finish_reason = meta_info.get("finish_reason")
        if isinstance(finish_reason, dict) and finish_reason.get("type") == "abort":
            # SGLang reports an abort by the client or the operator as a success.
            raise TransientError(
                "request-aborted", f"the server aborted the request: {finish_reason.get('message')}"
            )
        receipts = meta_info.get(FIELD)
        if receipts is None:
            raise StopError(
                "server-unpatched",
                f"{url} served a prompt without capturing it; start it with statetap-sglang",
            )
        (receipt,) = receipts
        return Receipt.from_json(receipt)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MismatchError(
            "receipt-unreadable", f"the server's answer holds no readable receipt: {error}"
        ) from error


def _message(answer: WholeAnswer) -> str:
    """The reason inside an error answer, in whichever of SGLang's forms."""
    try:
        body = answer.json()
    except ValueError:
        return answer.body[:500].decode(errors="replace")
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            return str(error.get("message") or error.get("detail") or error)[:500]
        return str(error)[:500]
    return str(body)[:500]


def _retry_after_s(answer: WholeAnswer) -> float | None:
    """Seconds that a Retry-After header asks for; its date form is ignored."""
    value = answer.retry_after
    return float(value) if value.isascii() and value.isdecimal() else None
