"""Rows that were tokenised elsewhere: token ids, and which of them the loss is taken over."""

from array import array
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import json_type

#: What trainers write into ``labels`` where no loss is taken.
_NO_LOSS: Final = -100

#: Half-open range of tokens.
_Span = tuple[int, int]


def ready_ids(row: dict[str, Any]) -> "tuple[array[int], tuple[_Span, ...]]":
    """``input_ids`` as int32, and the loss spans that ``loss_mask`` or ``labels`` give.

    Where the row has neither, the loss is taken over all tokens. Each list may be nested once,
    as a batch of one.

    Raises:
        RejectError: kinds ``ids-unreadable``, ``token-id-negative``, ``mask-unreadable``,
            ``mask-length``, ``labels-differ``.
    """
    ids = _list(row["input_ids"], "input_ids", "ids-unreadable")
    if not ids:
        raise RejectError("ids-unreadable", "'input_ids' holds no ids")
    # A boolean is an int to Python, and a float may be one to JSON.
    if set(map(type, ids)) != {int}:
        odd = next(value for value in ids if type(value) is not int)
        raise RejectError(
            "ids-unreadable", f"'input_ids' holds {odd!r:.20}, which is not a whole number"
        )
    if (smallest := min(ids)) < 0:
        raise RejectError("token-id-negative", f"'input_ids' holds {smallest}")
    try:
        token_ids = array("i", ids)
    except OverflowError as error:
        raise RejectError("ids-unreadable", "'input_ids' holds an id beyond 32 bits") from error
    return token_ids, _spans(_mask(row, ids))


def _mask(row: dict[str, Any], ids: list[int]) -> bytes:
    """One byte a token, 0 or 1."""
    if (given := row.get("loss_mask")) is not None:
        mask = _as_long_as(ids, _list(given, "loss_mask", "mask-unreadable"), "loss_mask")
        try:
            has_others = not set(mask) <= {0, 1}
        except TypeError:
            has_others = True
        if has_others:
            raise RejectError("mask-unreadable", "'loss_mask' holds values other than 0 and 1")
        return bytes(map(bool, mask))
    if (given := row.get("labels")) is not None:
        labels = _as_long_as(ids, _list(given, "labels", "mask-unreadable"), "labels")
        for token, (label, token_id) in enumerate(zip(labels, ids, strict=True)):
            # Labels that were shifted by their maker would put the mask one token off.
            if label not in (_NO_LOSS, token_id):
                raise RejectError(
                    "labels-differ",
                    f"'labels' has {label!r:.20} at token {token + 1}, which is neither its id "
                    f"nor {_NO_LOSS}",
                )
        return bytes(label != _NO_LOSS for label in labels)
    return b"\1" * len(ids)


def _list(value: object, field: str, kind: str) -> list[Any]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        raise RejectError(kind, f"{field!r} is {json_type(value)}, not a list of numbers")
    return value


def _as_long_as(ids: list[int], mask: list[Any], field: str) -> list[Any]:
    if len(mask) != len(ids):
        raise RejectError(
            "mask-length", f"{field!r} has {len(mask)} values for {len(ids)} token ids"
        )
    return mask


def _spans(mask: bytes) -> tuple[_Span, ...]:
    spans = []
    end = 0
    while (start := mask.find(1, end)) >= 0:
        end = mask.find(0, start)
        if end < 0:
            end = len(mask)
        spans.append((start, end))
    return tuple(spans)
