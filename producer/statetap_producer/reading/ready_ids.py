"""Rows that were tokenised elsewhere: token ids, and which of them the loss is taken over.

Padding is no part of the prompt: where ``attention_mask`` is 0 at either end, ids and masks are
left out.
"""

from array import array
from typing import Any, Final

from statetap_contract import RejectError

from statetap_producer.reading.row_values import json_type

#: What trainers write into ``labels`` where no loss is taken.
_NO_LOSS: Final = -100

#: What the mask of the loss is called: here, by TRL, and by chat templates.
_LOSS_MASKS: Final = ("loss_mask", "completion_mask", "assistant_masks")

#: Half-open range of tokens.
_Span = tuple[int, int]


def ready_ids(row: dict[str, Any]) -> "tuple[array[int], tuple[_Span, ...]]":
    """``input_ids`` as int32, and the loss spans that a mask of the loss or ``labels`` give.

    Where the row has none of them, the loss is taken over all tokens. Each list may be nested
    once, as a batch of one.

    Raises:
        RejectError: kinds ``ids-unreadable``, ``token-id-negative``, ``mask-unreadable``,
            ``mask-length``, ``attention-mask-hole``, ``masks-differ``, ``labels-differ``.
    """
    ids = _list(row["input_ids"], "input_ids", "ids-unreadable")
    num_ids = len(ids)
    attended = _attended(row, num_ids)
    ids = ids[attended]
    if not ids:
        raise RejectError("ids-unreadable", "'input_ids' holds no ids, or nothing but padding")
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
    return token_ids, _spans(_mask(row, ids, num_ids, attended))


def _attended(row: dict[str, Any], num_ids: int) -> slice:
    """The tokens between the padding of both ends."""
    if (given := row.get("attention_mask")) is None:
        return slice(0, num_ids)
    mask = _zeros_and_ones(_as_long_as(num_ids, given, "attention_mask"), "attention_mask")
    begin, end = mask.find(1), mask.rfind(1) + 1
    if 0 in mask[begin:end]:
        raise RejectError(
            "attention-mask-hole",
            f"'attention_mask' is 0 at token {mask.index(0, begin) + 1}, between tokens that it "
            "does not mask",
        )
    return slice(max(begin, 0), end)


def _mask(row: dict[str, Any], ids: list[int], num_ids: int, attended: slice) -> bytes:
    """One byte a token that is no padding, 0 or 1."""
    masks = {}
    for field in _LOSS_MASKS:
        if (given := row.get(field)) is not None:
            masks[field] = _zeros_and_ones(_as_long_as(num_ids, given, field)[attended], field)
    if (given := row.get("labels")) is not None:
        masks["labels"] = _labelled(_as_long_as(num_ids, given, "labels")[attended], ids)
    if len(set(masks.values())) > 1:
        raise RejectError(
            "masks-differ", f"{' and '.join(map(repr, masks))} take the loss over different tokens"
        )
    return next(iter(masks.values()), b"\1" * len(ids))


def _labelled(labels: list[Any], ids: list[int]) -> bytes:
    for token, (label, token_id) in enumerate(zip(labels, ids, strict=True)):
        # Labels that were shifted by their maker would put the mask one token off.
        if label not in (_NO_LOSS, token_id):
            raise RejectError(
                "labels-differ",
                f"'labels' has {label!r:.20} at token {token + 1}, which is neither its id "
                f"nor {_NO_LOSS}",
            )
    return bytes(label != _NO_LOSS for label in labels)


def _zeros_and_ones(mask: list[Any], field: str) -> bytes:
    try:
        has_others = not set(mask) <= {0, 1}
    except TypeError:
        has_others = True
    if has_others:
        raise RejectError("mask-unreadable", f"{field!r} holds values other than 0 and 1")
    return bytes(map(bool, mask))


def _list(value: object, field: str, kind: str) -> list[Any]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    if not isinstance(value, list):
        raise RejectError(kind, f"{field!r} is {json_type(value)}, not a list of numbers")
    return value


def _as_long_as(num_ids: int, value: object, field: str) -> list[Any]:
    mask = _list(value, field, "mask-unreadable")
    if len(mask) != num_ids:
        raise RejectError(
            "mask-length", f"{field!r} has {len(mask)} values for {num_ids} token ids"
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
