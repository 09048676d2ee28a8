"""The JSON that answers are asked for in and kept in: what other programs read too."""

import json

from statetap_contract import RejectError


def json_form(value: object) -> bytes:
    """A value as JSON, on one line.

    Raises:
        RejectError: kind ``no-json-form``: NaN or an infinity, half a surrogate pair, or too deep.
            Rows may hold them, as Python's own reader takes the first and ``1e999``.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise RejectError(
            "no-json-form", f"the row holds what JSON has no form for ({error})"
        ) from error
