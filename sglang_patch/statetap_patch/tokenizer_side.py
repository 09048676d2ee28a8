"""Hooks of the tokenizer process: admit, refuse or answer capture requests before they run."""

import asyncio
import errno
import logging
import uuid
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NoReturn, TypeVar

from statetap_contract import FIELD, CaptureRequest, Prompt, Receipt, dump_name
from statetap_contract.dump import DumpLayout

from statetap_patch.dump_file import read_receipt
from statetap_patch.housekeeping import start_housekeeping
from statetap_patch.scheduler_side import ATTEMPT
from statetap_patch.settings import PatchSettings
from statetap_patch.space import give_back, keep, reserve

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: More than one, because the kernel has many pages to find for a long prompt's dump.
_NUM_FILE_THREADS: Final = 4

#: Seconds after which there may be room again: clients fetch and delete dumps all the time.
_RETRY_AFTER_S: Final = 2

#: Fields of a request that change its states, and of which the sample key says nothing.
_FOREIGN_FIELDS: Final = {
    "stream": "a stream",
    "text": "a text beside its ids",
    "session_params": "a session",
    "session_id": "a session",
    "input_embeds": "input embeddings",
    "positional_embed_overrides": "overridden embeddings",
    "image_data": "images",
    "video_data": "videos",
    "audio_data": "audio",
    "lora_path": "a LoRA adapter",
    "lora_id": "a LoRA adapter",
    "multi_item_delimiter_indices": "several items",
    "token_indices_to_pool": "setwise scoring",
}


class TokenizerSide:
    """The hooks, bound to one server's settings."""

    def __init__(self, settings: PatchSettings) -> None:
        self._settings = settings
        # Not the loop's own threads: a dump folder that hangs must hang captures alone.
        self._files = ThreadPoolExecutor(_NUM_FILE_THREADS, "statetap-admission")

    def after_init(self, *_: Any, **__: Any) -> None:
        """AFTER ``TokenizerManager.__init__``, of which a server has exactly one."""
        start_housekeeping(self._settings.dumps, self._settings.keep_s)

    async def around_generate_request(
        self,
        original: Callable[..., AsyncIterator[dict[str, Any]]],
        manager: Any,
        obj: Any,
        request: Any = None,
    ) -> AsyncIterator[dict[str, Any]]:
        """AROUND ``TokenizerManager.generate_request``.

        A key whose dump is there is answered at once; a key in flight, or one that holds another
        prompt, gets a 409; no room for the dump is a 503 with Retry-After. Everything else that is
        wrong with a capture request gets a 400.
        """
        _refuse_foreign_ids(obj, manager.model_config.vocab_size)
        params = _custom_params(obj)
        if params is None:
            async for answer in original(manager, obj, request):
                yield answer
            return
        wanted = _read_request(params[FIELD], obj, self._settings.spec.digest)
        if len(obj.input_ids) >= manager.context_len:
            # Before room is looked for, which such a prompt may never find.
            _refuse(
                obj,
                f"the prompt has {len(obj.input_ids)} tokens, "
                f"the server takes fewer than {manager.context_len}",
            )
        prompt = Prompt(array("i", obj.input_ids), ())
        attempt = uuid.uuid4().hex
        receipt = await self._known(wanted, prompt, manager)
        if receipt is None:
            await self._reserve(attempt, prompt.num_tokens)
            try:
                # Again: much may have happened while room was made. From here to SGLang's own
                # record of the key there is no pause in which another attempt could slip in.
                receipt = await self._known(wanted, prompt, manager)
                if receipt is None:
                    params[FIELD] = wanted.to_json() | {ATTEMPT: attempt}
                    async for answer in original(manager, obj, request):
                        _prove_captured(answer, wanted.key)
                        yield answer
                    return
            finally:
                # What no writer has taken over by now was refused or aborted on the way.
                self._files.submit(self._give_back, attempt)
        yield _replay(receipt)

    async def around_update_weights(self, *_: Any, **__: Any) -> NoReturn:
        """AROUND ``TokenizerManager.update_weights_from_…``: refuses with a 409.

        Other weights under the same capture spec would be stored as if they were the first ones.
        """
        _end(409, "the weights of a capturing server cannot be changed; start another server")

    async def around_check_weights(
        self, original: Callable[..., Awaitable[Any]], manager: Any, check: Any, *others: Any
    ) -> Any:
        """AROUND ``TokenizerManager.check_weights``, one of whose actions overwrites them."""
        if check.action == "reset_tensors":
            await self.around_update_weights()
        return await original(manager, check, *others)

    async def _known(self, wanted: CaptureRequest, prompt: Prompt, manager: Any) -> Receipt | None:
        """The receipt of the key's dump if there is one; a 409 where the key cannot be had."""
        receipt = await self._in_file_thread(self._published, wanted.key)
        if receipt is None:
            if wanted.key in manager.rid_to_state:
                # SGLang's own record, which also holds an aborted request until the scheduler is
                # through with it; left to SGLang, the answer would be a 400, as for a bad request.
                _end(409, f"key {wanted.key} is in flight")
            return None
        if receipt.token_digest != prompt.token_digest():
            _end(409, f"key {wanted.key} holds the dump of another prompt")
        if receipt.spec_digest != self._settings.spec.digest:
            _end(409, f"key {wanted.key} holds a dump of spec {receipt.spec_digest}")
        return receipt

    def _published(self, key: str) -> Receipt | None:
        """The receipt of a dump that is there, and stays long enough for its receipt's reader."""
        receipt = read_receipt(self._settings.dumps, key)
        try:
            if receipt is not None:
                keep(self._settings.dumps / dump_name(key))
        except FileNotFoundError:
            return None  # expired, or deleted by another client, between the two calls
        return receipt

    async def _reserve(self, attempt: str, num_tokens: int) -> None:
        """Takes the space of the whole dump; a 503 with Retry-After when there is none."""
        folder, spec = self._settings.dumps, self._settings.spec
        num_bytes = DumpLayout(num_tokens, spec.row_width, spec.dtype).file_bytes
        reserving = self._in_file_thread(reserve, folder, attempt, num_bytes)
        try:
            await asyncio.shield(reserving)
        except asyncio.CancelledError:
            # The thread goes on; what it reserves belongs to nobody any more.
            reserving.add_done_callback(lambda _: self._files.submit(self._give_back, attempt))
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _end(
                    503,
                    f"{folder} has no room for a dump of {num_bytes} bytes; fetch and delete "
                    "dumps, or enlarge it",
                    retry_after_s=_RETRY_AFTER_S,
                )
            _end(500, f"cannot reserve room for a dump: {error}")

    def _give_back(self, attempt: str) -> None:
        try:
            give_back(self._settings.dumps, attempt)
        except OSError:
            logger.exception("the room reserved for attempt %s stays taken", attempt)

    def _in_file_thread(
        self, function: Callable[..., _Result], *arguments: Any
    ) -> "asyncio.Future[_Result]":
        return asyncio.get_running_loop().run_in_executor(self._files, function, *arguments)


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
    if not hasattr(obj, "stream"):  # an embedding request, of which SGLang has no such field
        _refuse(obj, "only what /generate takes can be captured")
    ids = obj.input_ids
    if not isinstance(ids, list) or not ids or any(type(token) is not int for token in ids):
        _refuse(obj, "the prompt must be given as input_ids, a list of integers")
    if len(ids) != wanted.num_tokens:
        _refuse(obj, f"the prompt has {len(ids)} tokens, the client counted {wanted.num_tokens}")
    if obj.rid != wanted.key:
        _refuse(obj, f"the request id {obj.rid!r} must be the sample key {wanted.key}")
    if wanted.spec_digest != spec_digest:
        _refuse(obj, f"this server captures spec {spec_digest}, not {wanted.spec_digest}")
    # Whatever was given at all: an empty list is as foreign as a full one, and may do more harm.
    foreign = {
        what: None
        for field, what in _FOREIGN_FIELDS.items()
        if (given := getattr(obj, field)) is not None and given is not False
    }
    for field, what in (("n", "n other than 1"), ("beam_width", "beam search")):
        if obj.sampling_params.get(field, 1) != 1:
            foreign[what] = None
    if foreign:
        _refuse(obj, f"a request with {', '.join(foreign)} cannot be captured")
    return wanted


def _replay(receipt: Receipt) -> dict[str, Any]:
    """The answer for a key whose dump is there."""
    return {
        "text": "",
        "output_ids": [],
        "meta_info": {
            "id": receipt.key,
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": receipt.num_tokens,
            "completion_tokens": 0,
            FIELD: [receipt.to_json()],
        },
    }


def _prove_captured(answer: dict[str, Any], key: str) -> None:
    """A success without a receipt would be an error of the patch that looks like none."""
    meta_info = answer["meta_info"]
    reason = meta_info.get("finish_reason")
    is_abort = isinstance(reason, dict) and reason.get("type") == "abort"
    if not meta_info.get(FIELD) and not is_abort:
        _end(500, f"{key} was served without being captured; the server's log says why")


def _refuse_foreign_ids(obj: Any, vocab_size: int) -> None:
    """One id outside the vocabulary would end an unpatched server, wherever it is asked for."""
    params = getattr(obj, "sampling_params", None)
    lists = [
        getattr(obj, "input_ids", None),
        *(
            one.get("stop_token_ids")
            for one in (params if isinstance(params, list) else [params])
            if isinstance(one, dict)
        ),
    ]
    for ids in lists:
        if not isinstance(ids, list) or not ids:
            continue
        for several in ids if isinstance(ids[0], list) else [ids]:
            if several and all(isinstance(token, int) for token in several):
                low, high = min(several), max(several)
                if low < 0 or high >= vocab_size:
                    foreign = low if low < 0 else high
                    _refuse(obj, f"token id {foreign} is not in the vocabulary of {vocab_size}")


def _refuse(obj: Any, reason: str) -> NoReturn:
    """Ends the request with a 400."""
    obj.is_single = True  # not set this early, but a stream's abort task reads it
    raise ValueError(f"statetap: {reason}")


def _end(status: int, reason: str, *, retry_after_s: int | None = None) -> NoReturn:
    """Ends the request with a status of the caller's choice."""
    # Starlette's own exception: for FastAPI's, SGLang has a handler that drops the headers.
    from starlette.exceptions import HTTPException  # noqa: PLC0415  there only beside SGLang

    headers = None if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    raise HTTPException(status, f"statetap: {reason}", headers)
