"""Hooks of the tokenizer process: admit, refuse or answer capture requests before they run."""

import logging
import uuid
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from statetap_contract import FIELD, CaptureRequest, Prompt

from statetap_patch.dump_file import read_receipt
from statetap_patch.scheduler_side import ATTEMPT
from statetap_patch.settings import PatchSettings

logger = logging.getLogger(__name__)


class TokenizerSide:
    """The hooks, bound to one server's settings."""

    def __init__(self, settings: PatchSettings) -> None:
        self._settings = settings

    async def around_generate_request(
        self,
        original: Callable[..., AsyncIterator[dict[str, Any]]],
        manager: Any,
        obj: Any,
        request: Any = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """AROUND ``TokenizerManager.generate_request``.

        A key whose dump is there is answered at once; a key in flight, or one that holds another
        prompt, gets a 409. Everything else that is wrong with a capture request gets a 400.
        """
        _refuse_foreign_ids(obj, manager.model_config.vocab_size)
        params = _custom_params(obj)
        if params is None:
            async for answer in original(manager, obj, request):
                yield answer
            return
        wanted = _read_request(params[FIELD], obj, self._settings.spec.digest)
        prompt = Prompt(array("i", obj.input_ids), ())
        receipt = read_receipt(self._settings.dumps, wanted.key)
        if receipt is not None:
            if receipt.token_digest != prompt.token_digest():
                _conflict(f"key {wanted.key} holds the dump of another prompt")
            yield {
                "text": "",
                "output_ids": [],
                "meta_info": {
                    "id": wanted.key,
                    "finish_reason": {"type": "length", "length": 0},
                    "prompt_tokens": receipt.num_tokens,
                    "completion_tokens": 0,
                    FIELD: [receipt.to_json()],
                },
            }
            return
        if wanted.key in manager.rid_to_state:
            # SGLang's own record, which also holds an aborted request until the scheduler is
            # through with it; left to SGLang, the answer would be a 400, as for a bad request.
            _conflict(f"key {wanted.key} is in flight")
        params[FIELD] = wanted.to_json() | {ATTEMPT: uuid.uuid4().hex}
        async for answer in original(manager, obj, request):
            yield answer

    async def around_update_weights(self, *_: Any, **__: Any) -> NoReturn:
        """AROUND ``TokenizerManager.update_weights_from_…``: refuses with a 409.

        Other weights under the same capture spec would be stored as if they were the first ones.
        """
        _conflict("the weights of a capturing server cannot be changed; start another server")


def _custom_params(obj: Any) -> dict[str, Any] | None:
    """The ``custom_params`` that ask for a capture; None for ordinary traffic."""
    params = getattr(obj, "sampling_params", None)
    several = params if isinstance(params, list) else [params]
    asking = [
        custom
        for one in several
        if isinstance(one, dict)
        and isinstance(custom := one.get("custom_params"), dict)
        and FIELD in custom
    ]
    if asking and isinstance(params, list):
        _refuse(obj, "a capture request holds one prompt, not a list")
    return asking[0] if asking else None


def _read_request(value: object, obj: Any, spec_digest: str) -> CaptureRequest:
    """Checks a capture request against the prompt it comes with and the server's spec."""
    try:
        wanted = CaptureRequest.from_json(value)
    except ValueError as error:
        _refuse(obj, str(error))
    ids = obj.input_ids
    if not isinstance(ids, list) or not ids or any(type(token) is not int for token in ids):
        _refuse(obj, "the prompt must be given as input_ids, a list of integers")
    if len(ids) != wanted.num_tokens:
        _refuse(obj, f"the prompt has {len(ids)} tokens, the client counted {wanted.num_tokens}")
    if obj.rid != wanted.key:
        _refuse(obj, f"the request id {obj.rid!r} must be the sample key {wanted.key}")
    if wanted.spec_digest != spec_digest:
        _refuse(obj, f"this server captures spec {spec_digest}, not {wanted.spec_digest}")
    params = obj.sampling_params
    foreign = {
        "a stream": obj.stream,
        "n above 1": (params.get("n") or 1) != 1,
        "a session": obj.session_params,
        "input_embeds": obj.input_embeds,
        # The key says nothing of adapters.
        "a LoRA adapter": obj.lora_path,
    }
    if reasons := [reason for reason, is_there in foreign.items() if is_there]:
        _refuse(obj, f"a request with {', '.join(reasons)} cannot be captured")
    return wanted


def _refuse_foreign_ids(obj: Any, vocab_size: int) -> None:
    """One id outside the vocabulary would end an unpatched server."""
    ids = getattr(obj, "input_ids", None)
    if not isinstance(ids, list) or not ids:
        return
    for prompt in ids if isinstance(ids[0], list) else [ids]:
        if prompt and all(isinstance(token, int) for token in prompt):
            low, high = min(prompt), max(prompt)
            if low < 0 or high >= vocab_size:
                foreign = low if low < 0 else high
                _refuse(obj, f"token id {foreign} is not in the vocabulary of {vocab_size}")


def _refuse(obj: Any, reason: str) -> NoReturn:
    """Ends the request with a 400."""
    obj.is_single = True  # not set this early, but a stream's abort task reads it
    raise ValueError(f"statetap: {reason}")


def _conflict(reason: str) -> NoReturn:
    """Ends the request with a 409."""
    import fastapi  # noqa: PLC0415  there only beside SGLang

    raise fastapi.HTTPException(409, f"statetap: {reason}")
