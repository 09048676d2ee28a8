"""ChatClient: asks a server for the next turn of a conversation, through its OpenAI-compatible API.

httpx rather than the ``openai`` package: two requests need no second HTTP client with models of its
own, and the answers have fields that it does not know.
"""

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import httpx
from statetap_contract import MissingError, RejectError, UsageError
from statetap_contract.api_key import api_key, authorization, key_refused, wants_key

from statetap_producer.generating.json_form import json_form
from statetap_producer.reading.turns import ASSISTANT, message_of

#: Seconds: a long answer behind a full queue takes minutes.
_READ_TIMEOUT_S: Final = 900.0
_CONNECT_TIMEOUT_S: Final = 5.0

#: How often a request is sent, and the seconds before it is sent again: doubled each time, about a
#: minute in all.
_NUM_TRIES: Final = 8
_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0

#: Answers of a server that is busy, starting or broken; time may mend them.
_MENDED_BY_TIME: Final = frozenset({408, 425, 429, 500, 502, 503, 504})

#: Answers that every request would get.
_MISTAKES: Final = frozenset({401, 403, 404, 405})

#: Kinds of rows that the server did not answer, as opposed to those that cannot be asked for.
REFUSALS: Final = ("request-refused", "server-error")

#: Fields of an answer that are kept, beside its role and content.
_KEPT: Final = ("reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How answers are drawn."""

    max_new_tokens: int
    #: None leaves it to the server, which goes by the model's own settings.
    temperature: float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn of the assistant."""

    #: As ``message_of`` returns it.
    message: dict[str, Any]
    num_tokens: int
    #: Whether it ended because it had ``max_new_tokens``.
    is_cut: bool


class ServerFaultError(RejectError):
    """The server fails on this request again and again; whether on others too is not known."""


class ChatClient:
    """Asks one model of one server. Made by ``open``.

    Args:
        http: a client of the server's address.
        model: name of the model at the server.
        sampling: the same for all answers.
    """

    def __init__(self, http: httpx.AsyncClient, model: str, sampling: Sampling) -> None:
        self._http = http
        self.model = model
        self._sampling = sampling

    @classmethod
    async def open(
        cls, url: str, model: str | None, sampling: Sampling, num_in_flight: int
    ) -> Self:
        """Finds the model.

        Args:
            url: address of the server.
            model: its name there; None for the only one.
            sampling: the same for all answers.
            num_in_flight: the most requests at a time.

        Raises:
            UsageError: kind ``server-url``, ``api-key``, ``model-unknown`` or ``model-not-given``.
            MissingError: kind ``server-unreachable``, ``server-key`` or ``server-refuses``.
        """
        try:
            http = httpx.AsyncClient(
                base_url=url,
                headers=authorization(api_key()),
                timeout=httpx.Timeout(_READ_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S, pool=None),
                limits=httpx.Limits(max_connections=num_in_flight),
                # A server of one's own is not reached through the environment's proxy.
                trust_env=False,
            )
            try:
                return cls(http, await _chosen_model(http, url, model), sampling)
            except BaseException:
                await http.aclose()
                raise
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise UsageError(
                "server-url", f"{url!r} is no server address; write it like http://127.0.0.1:30000"
            ) from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def answer(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> Answer:
        """The turn that follows; a server that is busy is asked again.

        Args:
            messages: the turns before, as ``Conversation`` has them.
            tools: what may be called.

        Raises:
            RejectError: kind ``request-refused``, the server will not answer this;
                those of ``json_form``; or those of ``message_of``: the answer is no turn of a
                conversation.
            ServerFaultError: kind ``server-error``: it fails on this.
            MissingError: kind ``server-unreachable``, ``server-key`` or ``server-refuses``: no
                request is answered.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(map(_as_sent, messages)),
            "max_tokens": self._sampling.max_new_tokens,
        }
        if tools is not None:
            body["tools"] = list(tools)
        if self._sampling.temperature is not None:
            body["temperature"] = self._sampling.temperature
        choice, num_tokens = await self._ask(json_form(body))
        return Answer(
            message=_turn_of(choice["message"]),
            num_tokens=num_tokens,
            is_cut=choice.get("finish_reason") == "length",
        )

    async def _ask(self, body: bytes) -> tuple[dict[str, Any], int]:
        """The first choice of the answer, and its tokens."""
        response: httpx.Response | None = None
        is_reached = False
        reason = ""
        for number in range(_NUM_TRIES):
            if number:
                await asyncio.sleep(_wait_s(number, response))
            try:
                response = await self._http.post(
                    "/v1/chat/completions",
                    content=body,
                    headers={"Content-Type": "application/json"},
                )
            except httpx.TransportError as error:
                response, is_reached = None, False
                reason = str(error) or type(error).__name__
                continue
            except httpx.RequestError as error:
                # An answer came, and cannot be decompressed.
                response, is_reached = None, True
                reason = f"its answer cannot be read: {error}"
                continue
            is_reached = True
            if response.status_code in _MISTAKES:
                raise _refuses(self._http, response)
            if response.is_client_error and response.status_code not in _MENDED_BY_TIME:
                raise RejectError("request-refused", f"the server refuses it: {_told(response)}")
            if response.is_success and (found := _choice_in(response)) is not None:
                return found
            reason = f"{response.status_code}: {_told(response)}"
        if not is_reached:
            raise _unreachable(self._http, reason)
        raise ServerFaultError(
            "server-error", f"the server fails on it {_NUM_TRIES} times: {reason}"
        )


async def _chosen_model(http: httpx.AsyncClient, url: str, wanted: str | None) -> str:
    try:
        response = await http.get("/v1/models")
        response.raise_for_status()
        models = [entry["id"] for entry in response.json()["data"]]
    except httpx.HTTPStatusError as error:
        raise _refuses(http, error.response) from error
    except httpx.UnsupportedProtocol:
        raise
    except httpx.RequestError as error:
        raise _unreachable(http, str(error) or type(error).__name__) from error
    except (ValueError, TypeError, KeyError) as error:
        raise MissingError(
            "server-unreachable",
            f"the server at {url} lists no models; give the address of an SGLang server",
        ) from error
    if wanted is not None and wanted not in models:
        raise UsageError(
            "model-unknown",
            f"the server at {url} has no model {wanted!r}; it has {', '.join(map(str, models))}",
        )
    if wanted is None and len(models) != 1:
        raise UsageError(
            "model-not-given",
            f"the server at {url} has {len(models)} models; choose one with --model: "
            f"{', '.join(map(str, models))}",
        )
    return wanted or str(models[0])


def _as_sent(message: Mapping[str, Any]) -> dict[str, Any]:
    """A turn as the API takes it: arguments of tool calls are text there."""
    sent = dict(message)
    if "tool_calls" in sent:
        sent["tool_calls"] = [
            call
            | {
                "function": call["function"]
                | {"arguments": json_form(call["function"]["arguments"]).decode()}
            }
            for call in sent["tool_calls"]
        ]
    return sent


def _turn_of(message: Mapping[str, Any]) -> dict[str, Any]:
    kept = {field: message[field] for field in _KEPT if message.get(field)}
    content = message.get("content")
    if content is None and "tool_calls" not in kept:
        # All of it was reasoning.
        content = ""
    return message_of({"role": ASSISTANT, "content": content} | kept)


def _choice_in(response: httpx.Response) -> tuple[dict[str, Any], int] | None:
    """The first choice and its tokens; None for what is no answer, or one that was broken off."""
    try:
        body = response.json()
        (choice,) = body["choices"]
        num_tokens = int(body["usage"]["completion_tokens"])
        is_whole = isinstance(choice["message"], dict) and choice.get("finish_reason") != "abort"
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (choice, num_tokens) if is_whole else None


def _wait_s(number: int, response: httpx.Response | None) -> float:
    """Seconds before a request is sent again for the ``number``-th time."""
    if response is not None:
        asked: str = response.headers.get("Retry-After", "")
        if asked.isdecimal():
            return min(float(asked), _LONGEST_WAIT_S)
    jitter = random.uniform(0.75, 1.25)  # noqa: S311 - no secret
    return min(_FIRST_WAIT_S * 2.0 ** (number - 1), _LONGEST_WAIT_S) * jitter


def _told(response: httpx.Response) -> str:
    """What the server says, on one line."""
    try:
        body = response.json()
        error = body.get("error", body)
        text = error["message"] if isinstance(error, dict) else error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        text = response.text
    return " ".join(str(text).split())[:300] or response.reason_phrase


def _refuses(http: httpx.AsyncClient, response: httpx.Response) -> MissingError:
    if wants_key(response.status_code):
        return MissingError("server-key", key_refused(_address(http)))
    return MissingError(
        "server-refuses",
        f"the server at {_address(http)} answers {response.status_code} to "
        f"{response.request.url.path} ({_told(response)}); give the address of an SGLang server",
    )


def _unreachable(http: httpx.AsyncClient, reason: str) -> MissingError:
    return MissingError(
        "server-unreachable",
        f"no server answers at {_address(http)} ({reason}); start it and run the command again",
    )


def _address(http: httpx.AsyncClient) -> str:
    return str(http.base_url).rstrip("/")
