"""The key that an SGLang server may ask of whoever talks to it: where it stands, how it is sent.

It is read from the environment alone: a command line can be read by everyone on the host.
"""

import os
import re
from collections.abc import Mapping
from typing import Final

from statetap_contract.errors import UsageError

#: Holds the key, for the server as for all its clients.
API_KEY_VARIABLE: Final = "STATETAP_API_KEY"

#: Of a bearer token, by RFC 6750. A header carries it as it is, and so does all else in which it
#: would have to be found to be hidden: nothing in it is ever escaped.
_FORM: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def api_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """The key of the server; None where there is none. An empty variable is none.

    Raises:
        UsageError: kind ``api-key``; the sentence does not show the key.
    """
    key = environment.get(API_KEY_VARIABLE)
    if not key:
        return None
    if not _FORM.fullmatch(key):
        raise UsageError(
            "api-key",
            f"the key in {API_KEY_VARIABLE} must be letters, digits and any of -._~+/; give the "
            "server another one",
        )
    return key


def authorization(key: str | None) -> dict[str, str]:
    """The header by which a request shows the key; none without one."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def wants_key(status: int) -> bool:
    """Whether an HTTP status says that the key was wrong or missing."""
    return status in (401, 403)


def key_refused(url: str) -> str:
    """The sentence for such an answer.

    Args:
        url: the server's address.
    """
    return f"the server at {url} wants another API key; put its key into {API_KEY_VARIABLE}"
