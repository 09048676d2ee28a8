"""Hooks of the scheduler process: take rows out of batches, hold answers back for their dumps.

They run on every rank of a tensor-parallel server, and an exception in one would end the server:
what reads a request or a batch guards itself. What steers the schedule (cache keys, finishing) must
be the same on all ranks; only the rank that answers clients (``_state.writer`` is set) captures.
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
from statetap_patch.layers import captured_boundaries
from statetap_patch.settings import HOLD_S, PatchSettings

logger = logging.getLogger(__name__)

#: Attribute of a request that is being captured.
_CAPTURE = "_statetap_capture"

#: Field that the tokenizer process adds to the capture request: the same on every rank.
ATTEMPT = "attempt"


@dataclass(slots=True)
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
    writer: DumpWriter | None = None
    vocab_size: int = 0
    context_length: int = 0
    held: dict[int, _Held] = field(default_factory=dict)
    #: The streamer's own ``stream_output``, known once the first answer went out.
    emit: Callable[..., None] | None = None


class SchedulerSide:
    """The hooks, bound to one server's settings."""

    def __init__(self, settings: PatchSettings) -> None:
        self._state = _State(settings)

    def after_scheduler_init(self, _result: Any, scheduler: Any, *_: Any, **__: Any) -> None:
        """AFTER ``Scheduler.__init__``: refuses what cannot work, then starts the writer.

        Raises:
            SystemExit: the server cannot capture what it was asked for.
        """
        # SGLang's modules can only be imported inside a running server.
        import sglang  # noqa: PLC0415
        from sglang.srt.runtime_context import get_parallel  # noqa: PLC0415

        _refuse_unsupported(scheduler)
        settings = self._state.settings
        captured = captured_boundaries(scheduler.tp_worker.model_runner.model)
        if captured != settings.spec.layers:
            raise SystemExit(
                f"statetap: this model captures layers {list(captured)} where "
                f"{list(settings.spec.layers)} were asked for; its architecture counts layers "
                "in another way than the launcher expects."
            )
        served = ModelFolder.read(Path(scheduler.server_args.model_path))
        if served.revision != settings.spec.revision:
            raise SystemExit(
                f"statetap: SGLang loaded {served.path}, which is not the model of the capture "
                "spec; start the server with statetap-sglang alone."
            )
        parallel = get_parallel()
        if parallel.attn_tp_rank == 0 and parallel.attn_cp_rank == 0:
            self._state.writer = DumpWriter(
                settings.dumps, settings.spec, sglang.__version__, VERSION
            )
            self._state.vocab_size = scheduler.model_config.vocab_size
            self._state.context_length = scheduler.model_config.context_len
            logger.info("statetap %s captures %s", VERSION, settings.spec)

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
        if self._state.writer is None:
            return
        try:
            request = CaptureRequest.from_json({k: v for k, v in asked.items() if k != ATTEMPT})
            capture = Capture(self._state.writer, request, attempt, list(req.origin_input_ids))
        except ValueError:
            # Admission proved the request. Without a capture the answer carries no receipt, and
            # the client does not take it for one.
            logger.exception("request %s cannot be captured", req.rid)
        else:
            setattr(req, _CAPTURE, capture)

    def after_forward(
        self, result: Any, _worker: Any, batch: Any = None, *_: Any, **__: Any
    ) -> None:
        """AFTER ``TpModelWorker.forward_batch_generation``, still inside the forward stream."""
        if batch is None or not batch.forward_mode.is_extend():
            return
        captures = [getattr(req, _CAPTURE, None) for req in batch.reqs]
        if not any(capture is not None and capture.is_open for capture in captures):
            return
        try:
            _take_rows(batch, captures, result.logits_output)
        except Exception as error:  # a capture may fail, the server must not
            logger.exception("capturing a batch failed")
            for capture in captures:
                if capture is not None:
                    capture.fail(f"{type(error).__name__}: {error}")

    def around_stream_output(
        self,
        original: Callable[..., None],
        streamer: Any,
        reqs: list[Any],
        return_logprob: bool,  # noqa: FBT001  SGLang's signature
        skip_req: Any = None,
    ) -> None:
        """AROUND ``SchedulerOutputStreamer.stream_output``: no answer before its dump is there."""
        self._state.emit = original
        ready = []
        for req in reqs:
            capture = getattr(req, _CAPTURE, None)
            is_ending = req is not skip_req and req.finished() and not req.finished_output
            if capture is not None and is_ending and not self._settle(req, capture):
                held = _Held(req, streamer, return_logprob, time.monotonic() + HOLD_S)
                self._state.held.setdefault(id(req), held)
            else:
                self._state.held.pop(id(req), None)
                ready.append(req)
        original(streamer, ready, return_logprob, skip_req)

    def before_process_input(self, *_: Any, **__: Any) -> None:
        """BEFORE ``Scheduler.process_input_requests``, once a turn of the event loop."""
        for held in list(self._state.held.values()):
            capture = getattr(held.req, _CAPTURE)
            if time.monotonic() > held.deadline_s:
                capture.fail(f"the dump was not complete after {HOLD_S:g} s", 504)
            if self._settle(held.req, capture) and self._state.emit is not None:
                del self._state.held[id(held.req)]
                self._state.emit(held.streamer, [held.req], held.return_logprob)

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
            capture.fail("the request was aborted", 499)

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
        ).to_json()

    def _settle(self, req: Any, capture: Capture) -> bool:
        """Whether a finished request's answer can go out; puts receipt or error into it."""
        from sglang.srt.managers.schedule_batch import FINISH_ABORT  # noqa: PLC0415  as above

        writer = self._state.writer
        if writer is None or not writer.is_alive:
            capture.fail("the writer thread is dead")
        if isinstance(req.finished_reason, FINISH_ABORT):
            capture.fail("the request was aborted", 499)
            return True
        if capture.is_open and capture.num_missing_rows:
            capture.fail(f"{capture.num_missing_rows} of {capture.num_rows} rows were not computed")
        if capture.error is not None:
            # After the finish, hence without effect on the schedule that all ranks share.
            req.finished_reason = FINISH_ABORT(
                capture.error, capture.error_status, "StatetapCaptureError"
            )
            return True
        if capture.receipt is None:
            return False
        req.customized_info = (req.customized_info or {}) | {FIELD: [capture.receipt.to_json()]}
        return True


def _take_rows(batch: Any, captures: list[Capture | None], output: Any) -> None:
    """Cuts each captured request's rows out of an extend batch."""
    num_rows = sum(batch.extend_lens)
    parts = {
        "input ids": batch.input_ids,
        "aux states": output.hidden_states,
        "last hidden state": output.last_hidden_states,
    }
    for name, part in parts.items():
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
                slots=(output.hidden_states, output.last_hidden_states),
            )
        batch_start += length


def _refuse_unsupported(scheduler: Any) -> None:
    """Ends a server whose settings would make rows wrong or lose them."""
    args = scheduler.server_args
    refused = {
        "no --enable-return-aux-hidden-states": not args.enable_return_aux_hidden_states,
        "--pp-size above 1": args.pp_size > 1,
        "--tokenizer-worker-num above 1": args.tokenizer_worker_num > 1,
        "--disaggregation-mode": args.disaggregation_mode != "null",
        "--enable-two-batch-overlap": args.enable_two_batch_overlap,
        "--allow-auto-truncate": args.allow_auto_truncate,
        "a model that does not generate": not scheduler.is_generation,
        "speculative decoding": not scheduler.spec_algorithm.is_none(),
        "the Rust frontend": scheduler.rust_server is not None,
    }
    if reasons := [reason for reason, is_so in refused.items() if is_so]:
        raise SystemExit(f"statetap: cannot capture with {', '.join(reasons)}; start without it.")
