"""Asks a running server what it captures."""

from typing import Final

import httpx
from statetap_contract import MissingError, ServerCapture, UsageError, agreed_capture
from statetap_contract.api_key import api_key, authorization, key_refused, wants_key

#: Seconds; a server that is busy with a prefill answers late.
_TIMEOUT_S: Final = 15.0


def ask_server(url: str) -> ServerCapture:
    """The capture facts of the server at ``url``.

    Raises:
        UsageError: kind ``server-url`` or ``api-key``.
        MissingError: kind ``server-unreachable`` or ``server-key``, and those of
            ``agreed_capture``.
    """
    try:
        # A server of one's own is not reached through the proxy that the environment names.
        with httpx.Client(
            headers=authorization(api_key()), trust_env=False, timeout=_TIMEOUT_S
        ) as client:
            answer = client.get(f"{url.rstrip('/')}/server_info")
        if wants_key(answer.status_code):
            raise MissingError("server-key", key_refused(url))
        answer.raise_for_status()
        server_info = answer.json()
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise UsageError(
            "server-url", f"{url!r} is no server address; write it like http://127.0.0.1:30000"
        ) from error
    except httpx.HTTPStatusError as error:
        raise MissingError(
            "server-unreachable",
            f"the server at {url} answers {error.response.status_code} to /server_info; give the "
            "address of an SGLang server",
        ) from error
    except httpx.HTTPError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingError(
            "server-unreachable", f"no server answers at {url} ({reason}); start it first"
        ) from error
    except ValueError as error:
        raise MissingError(
            "server-unreachable",
            f"the server at {url} answers no JSON to /server_info; give the address of an SGLang "
            "server",
        ) from error
    return agreed_capture(server_info, url)
