"""Hooks of the scheduler process: take rows out of batches, hold answers back for their dumps.

They run on every rank of a tensor-parallel server, and an exception in one would end the server:
``hooks`` puts a guard around each. What steers the schedule (cache keys, finishing) must be the
same on all ranks; only the rank that answers clients (``_state.writer`` is set) captures.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from statetap_contract import FIELD, CaptureRequest, ModelFolder, ServerCapture

from statetap_patch import VERSION
from statetap_patch.capture import Capture
from statetap_patch.dump_writer import DumpWriter
from statetap_patch.final_norm import FinalNormInput
from statetap_patch.guard import Guard
from statetap_patch.layers import COMPARED, captured_boundaries
from statetap_patch.refusals import refuse_unsupported
from statetap_patch.ring import Ring
from statetap_patch.settings import HOLD_S, PatchSettings
from statetap_patch.transfer import Transfer

logger = logging.getLogger(__name__)

#: Attribute of a request that is being captured.
_CAPTURE = "_statetap_capture"

#: Field that the tokenizer process adds to the capture request: the same on every rank.
ATTEMPT = "attempt"


@dataclass(frozen=True, slots=True)
class _Held:
    """A finished request whose dump is not there yet."""

    req: Any
    streamer: Any
    return_logprob: bool
    deadline_s: float


@dataclass(slots=True)
class _State:
    """What the hooks of one scheduler process share."""

    settings: PatchSettings
    #: None on ranks that answer no clients.
    writer: DumpWriter | None = None
    #: None where the last hidden state is wanted after the final norm, as SGLang gives it.
    final_norm_input: FinalNormInput | None = None
    vocab_size: int = 0
    context_length: int = 0
    held: dict[int, _Held] = field(default_factory=dict)


class SchedulerSide:
    """The hooks, bound to one server's settings."""

    def __init__(self, settings: PatchSettings, guard: Guard) -> None:
        self._state = _State(settings)
        self._guard = guard

    def after_scheduler_init(self, _result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """AFTER ``Scheduler.__init__``: refuses what cannot work, then starts the writer.

        Raises:
            SystemExit: the server cannot capture what it was asked for.
        """
        # SGLang's modules can only be imported inside a running server.
        import sglang  # noqa: PLC0415
        import torch  # noqa: PLC0415
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415

        refuse_unsupported(scheduler)
        state, spec = self._state, self._state.settings.spec
        model = scheduler.tp_worker.model_runner.model
        try:
            captured = captured_boundaries(model)
            if spec.norm == "pre":
                state.final_norm_input = FinalNormInput(model)
        except ValueError as error:
            raise SystemExit(f"statetap: {error}; it cannot be captured from.") from error
        if captured != spec.layers:
            raise SystemExit(
                f"statetap: this model captures layers {list(captured)} where "
                f"{list(spec.layers)} were asked for; its architecture counts layers "
                "in another way than the launcher expects."
            )
        served = ModelFolder.read(Path(scheduler.server_args.model_path))
        if served.revision != spec.revision:
            raise SystemExit(
                f"statetap: SGLang loaded {served.path}, which is not the model of the capture "
                "spec; start the server with statetap-sglang alone."
            )
        if get_parallel().attn_tp_rank == 0:
            is_cuda = scheduler.server_args.device == "cuda"
            ring = Ring(is_pinned=is_cuda)
            state.writer = DumpWriter(
                state.settings.dumps,
                spec,
                transfer=Transfer(ring, spec, torch.cuda if is_cuda else None),
                sglang_version=sglang.__version__,
                patch_version=VERSION,
            )
            state.vocab_size = scheduler.model_config.vocab_size
            # Also what the key-value pool holds, of which SGLang keeps some back.
            state.context_length = scheduler.max_req_input_len
            logger.info("statetap %s captures %s", VERSION, spec)
            if served.architecture not in COMPARED:
                logger.warning(
                    "states of a %s were never compared with HF transformers; "
                    "run statetap crosscheck on the first samples",
                    served.architecture,
                )

    def after_request_init(self, _result: Any, req: Any, *_: Any, **__: Any) -> None:
        """AFTER ``Req.__init__``: opens the capture of a request that asked for one."""
        params = req.sampling_params.custom_params
        asked = params.get(FIELD) if isinstance(params, dict) else None
        if not isinstance(asked, dict) or ATTEMPT not in asked:
            return
        attempt = asked[ATTEMPT]
        # A key of its own: the prompt matches no cached prefix, so every row is computed, and
        # leaves nothing in the cache that others would find. The same on every rank.
        req.extra_key = f"{req.extra_key or ''}|statetap:{attempt}"
        req.skip_radix_cache_insert = True
        if self._state.writer is not None:
            request = CaptureRequest.from_json({k: v for k, v in asked.items() if k != ATTEMPT})
            capture = Capture(self._state.writer, request, attempt, list(req.origin_input_ids))
            setattr(req, _CAPTURE, capture)
            self._state.writer.open(capture)

    def after_forward(
        self, result: Any, _worker: Any, batch: Any = None, *_: Any, **__: Any
    ) -> None:
        """AFTER ``TpModelWorker.forward_batch_generation``, still inside the forward stream."""
        final_norm_input = self._state.final_norm_input
        # After each pass, whether it is captured or not: none may be given what another left.
        before_norm = None if final_norm_input is None else final_norm_input.take()
        if batch is None or not batch.forward_mode.is_extend():
            return
        captures = [getattr(req, _CAPTURE, None) for req in batch.reqs]
        if not any(capture is not None and capture.is_open for capture in captures):
            return
        output = result.logits_output
        last = output.last_hidden_states if final_norm_input is None else before_norm
        try:
            _take_rows(batch, captures, output.hidden_states, last)
        except Exception as error:
            for capture in captures:
                if capture is not None:
                    capture.fail(f"{type(error).__name__}: {error}")
            raise

    def around_stream_output(
        self,
        original: Callable[..., None],
        streamer: Any,
        reqs: list[Any],
        return_logprob: bool,  # noqa: FBT001  SGLang's signature
        skip_req: Any = None,
    ) -> None:
        """AROUND ``SchedulerOutputStreamer.stream_output``: no answer before its dump is there."""
        plain: list[Any] = []
        captured: list[Any] = []
        for req in reqs:
            is_ending = req is not skip_req and req.finished() and not req.finished_output
            if is_ending and self._must_wait(req):
                deadline_s = time.monotonic() + HOLD_S
                held = _Held(req, streamer, return_logprob, deadline_s)
                self._state.held.setdefault(id(req), held)
            else:
                self._state.held.pop(id(req), None)
                (captured if hasattr(req, _CAPTURE) else plain).append(req)
        # Apart: SGLang gives every request of a message the extra fields that one of them has.
        original(streamer, plain, return_logprob, skip_req)
        if captured:
            original(streamer, captured, return_logprob, skip_req)

    def before_process_input(self, *_: Any, **__: Any) -> None:
        """BEFORE ``Scheduler.process_input_requests``, once a turn of the event loop."""
        for held in list(self._state.held.values()):
            if time.monotonic() > held.deadline_s:
                capture = getattr(held.req, _CAPTURE)
                capture.fail(f"the dump was not complete after {HOLD_S:g} s", 504)
            if not self._must_wait(held.req):
                # Comes by ``around_stream_output`` again, which now lets it pass.
                held.streamer.stream_output([held.req], held.return_logprob)

    def around_sleep_on_idle(self, original: Callable[..., None], scheduler: Any) -> None:
        """AROUND ``Scheduler.maybe_sleep_on_idle``, which could delay a held answer by 1 s."""
        writer = self._state.writer
        if not self._state.held or writer is None:
            original(scheduler)
            return
        writer.settled.wait(0.005)
        writer.settled.clear()

    def before_abort_output(
        self, _scheduler: Any, _abort: Any, req: Any, *_: Any, **__: Any
    ) -> None:
        """BEFORE ``Scheduler.send_abort_output``: ends that bypass the output stream."""
        capture = getattr(req, _CAPTURE, None)
        if capture is not None:
            _abort_unless_complete(capture)

    def around_is_request_level(
        self, original: Callable[..., bool], streamer: Any, key: str
    ) -> bool:
        """AROUND ``is_request_level_customized_info_key``: the receipt is not cut by tokens."""
        return key == FIELD or original(streamer, key)

    def after_internal_state(self, result: Any, _scheduler: Any, *_: Any, **__: Any) -> None:
        """AFTER ``Scheduler.get_internal_state``: the handshake."""
        writer, settings = self._state.writer, self._state.settings
        if writer is None:  # every rank runs this, one answers
            return
        result.internal_state[FIELD] = ServerCapture(
            spec=settings.spec,
            dumps=str(settings.dumps),
            host=writer.host,
            raw_layer_ids=settings.raw_layer_ids,
            vocab_size=self._state.vocab_size,
            context_length=self._state.context_length,
            sglang_version=writer.sglang_version,
            patch_version=writer.patch_version,
            is_writer_alive=writer.is_alive,
            num_published=writer.num_published,
            num_failed=writer.num_failed,
            num_hook_errors=self._guard.num_errors,
        ).to_json()

    def _must_wait(self, req: Any) -> bool:
        """Whether a finished request's dump is not there yet; else its answer says what became."""
        capture: Capture | None = getattr(req, _CAPTURE, None)
        if capture is None:
            return False
        try:
            return self._is_unsettled(req, capture)
        except Exception as error:  # noqa: BLE001  one request's, and others wait behind it
            # Admission turns an answer without a receipt into an error.
            self._guard.report(f"the answer to {capture.key}", error)
            return False

    def _is_unsettled(self, req: Any, capture: Capture) -> bool:
        from sglang.srt.managers.schedule_batch import FINISH_ABORT  # noqa: PLC0415  as above

        if isinstance(req.finished_reason, FINISH_ABORT):
            # Nobody waits for the dump. It is still made when its rows are there, for the retry.
            _abort_unless_complete(capture)
            return False
        writer = self._state.writer
        if writer is None or not writer.is_alive:
            capture.fail("a writer thread is dead")
        elif capture.num_missing_rows:
            capture.fail(f"{capture.num_missing_rows} of {capture.num_rows} rows were not computed")
        if capture.is_open:
            return True
        if capture.receipt is not None:
            req.customized_info = (req.customized_info or {}) | {FIELD: [capture.receipt.to_json()]}
        else:
            # After the finish, hence without effect on the schedule that all ranks share.
            req.finished_reason = FINISH_ABORT(
                capture.error, capture.error_status, "StatetapCaptureError"
            )
        return False


def _abort_unless_complete(capture: Capture) -> None:
    if capture.num_missing_rows:
        capture.fail("the request was aborted", 499)


def _take_rows(
    batch: Any,
    captures: list[Capture | None],
    aux: Any,
    last: Any,
) -> None:
    """Cuts each captured request's rows out of an extend batch.

    Args:
        batch: SGLang's ``ScheduleBatch``.
        captures: one for each request of the batch, None for those that did not ask.
        aux: [rows, K*H], or None where the model gave none.
        last: [rows, H], likewise.
    """
    num_rows = sum(batch.extend_lens)
    for name, part in (("input ids", batch.input_ids), ("aux states", aux), ("last state", last)):
        # Padding rows of a parallel server may follow; fewer rows mean that something was cut.
        found = 0 if part is None else len(part)
        if found < num_rows:
            raise ValueError(f"the batch has {num_rows} rows, but {found} of {name}")
    batch_start = 0
    for capture, prefix, length in zip(captures, batch.prefix_lens, batch.extend_lens, strict=True):
        if capture is not None and capture.is_open:
            capture.take_rows(
                prefix=prefix,
                length=length,
                batch_start=batch_start,
                input_ids=batch.input_ids,
                slots=(aux, last),
            )
        batch_start += length
