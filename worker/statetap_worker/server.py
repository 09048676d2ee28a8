"""The client of one SGLang server: handshake, and one prompt's capture."""

import logging
import time
from types import TracebackType
from typing import Any, Final, Self

import httpx
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

logger = logging.getLogger(__name__)

#: Seconds: a long prompt behind a full queue takes minutes; must stay below the visibility
#: timeout of the queue, or the message runs twice.
_READ_TIMEOUT_S: Final = 900.0
_CONNECT_TIMEOUT_S: Final = 5.0

#: Waits for the scheduler's turn, which a large batch delays.
_HANDSHAKE_TIMEOUT_S: Final = 30.0

#: Kinds of a failed handshake that waiting may cure.
MENDED_BY_TIME: Final = ("server-unreachable", "server-not-ready")


class Server:
    """Talks to one server over a kept connection. Not shared between processes."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            transport=transport,
            # A server on one's own host is not reached through the environment's proxy.
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._http.close()

    def handshake(self) -> ServerCapture:
        """What the server captures.

        Raises:
            MissingError: kinds ``server-unreachable`` and ``server-not-ready``, which time may
                mend, and those of ``agreed_capture``, which it will not.
        """
        try:
            answer = self._http.get(
                "/server_info",
                timeout=httpx.Timeout(_HANDSHAKE_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            )
            answer.raise_for_status()
            server_info = answer.json()
        except httpx.HTTPStatusError as error:
            raise MissingError(
                "server-not-ready",
                f"{self.url} answers {error.response.status_code}; wait until its model is loaded",
            ) from error
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise MissingError(
                "server-unreachable",
                f"no SGLang server at {self.url} ({error}); start statetap-sglang or mend the URL",
            ) from error
        except ValueError as error:
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
                    logger.warning("waiting for the server at %s: %s", self.url, error)
                    is_told = True
                time.sleep(1)

    def capture(self, job: Job) -> Receipt:
        """Has the prompt's states dumped.

        Raises:
            TransientError: kinds ``server-unreachable``, ``server-timeout``, ``server-busy``,
                ``server-error``, ``dumps-full``, ``key-in-flight``, ``request-aborted``.
            RejectError: kind ``request-refused``: no retry can help.
            StopError: kind ``server-unpatched``: it answered, but captured nothing.
            MismatchError: kind ``receipt-unreadable``.
        """
        request = CaptureRequest(job.key, job.prompt.num_tokens, job.spec_digest)
        body = {
            "rid": job.key,
            "input_ids": job.prompt.token_ids.tolist(),
            "sampling_params": {
                # Prefill alone is wanted.
                "max_new_tokens": 0,
                "temperature": 0,
                "custom_params": {FIELD: request.to_json()},
            },
        }
        try:
            answer = self._http.post("/generate", json=body)
        except httpx.TimeoutException as error:
            raise TransientError("server-timeout", f"{self.url} did not answer: {error}") from error
        except httpx.TransportError as error:
            raise TransientError("server-unreachable", f"{self.url}: {error}") from error
        if answer.status_code != httpx.codes.OK:
            raise _failure(answer)
        return _receipt(answer)


def _failure(answer: httpx.Response) -> TransientError | RejectError:
    """The error for an answer that is no success."""
    status, message = answer.status_code, _message(answer)
    text = f"the server answered {status}: {message}"
    match status:
        case httpx.codes.CONFLICT:
            return TransientError("key-in-flight", text)
        case httpx.codes.SERVICE_UNAVAILABLE:
            return TransientError("server-busy", text, _retry_after_s(answer))
        case httpx.codes.INSUFFICIENT_STORAGE:
            return TransientError("dumps-full", text, _retry_after_s(answer))
        case 499 | httpx.codes.REQUEST_TIMEOUT | httpx.codes.TOO_MANY_REQUESTS:
            return TransientError("request-aborted", text, _retry_after_s(answer))
        case _ if httpx.codes.is_client_error(status):
            return RejectError("request-refused", text)
    return TransientError("server-error", text)


def _receipt(answer: httpx.Response) -> Receipt:
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
                f"{answer.url} served a prompt without capturing it; start it with statetap-sglang",
            )
        return Receipt.from_json(receipts[0])
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MismatchError(
            "receipt-unreadable", f"the server's answer holds no readable receipt: {error}"
        ) from error


def _message(answer: httpx.Response) -> str:
    """The reason inside an error answer, in whichever of SGLang's forms."""
    try:
        body = answer.json()
    except ValueError:
        return answer.text[:500]
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            return str(error.get("message") or error.get("detail") or error)[:500]
        return str(error)[:500]
    return str(body)[:500]


def _retry_after_s(answer: httpx.Response) -> float | None:
    """Seconds that a Retry-After header asks for; its date form is ignored."""
    value = answer.headers.get("Retry-After", "")
    return float(value) if value.isdigit() else None
