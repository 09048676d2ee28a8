"""Settings of a server under which rows would be wrong or lost, each with its reason."""

from typing import Any


def refuse_unsupported(scheduler: Any) -> None:
    """Ends a server that was started with such settings.

    Args:
        scheduler: SGLang's ``Scheduler``, just made.

    Raises:
        SystemExit: names all of them.
    """
    args = scheduler.server_args
    if not args.enable_return_aux_hidden_states:
        raise SystemExit("statetap: the server computes no aux states; use statetap-sglang alone.")
    is_set = {
        # Rows of one prompt end up in several processes.
        "--pp-size above 1 (no rank sees both aux layers and last state)": args.pp_size > 1,
        "--attn-cp-size above 1 (a prompt's rows are spread over ranks)": args.attn_cp_size > 1,
        "--dcp-size above 1 (a prompt's rows are spread over ranks)": args.dcp_size > 1,
        "--enable-prefill-cp (a prompt's rows are spread over ranks)": args.enable_prefill_cp,
        "--enable-layernorm-sp (a prompt's rows are spread over ranks)": args.enable_layernorm_sp,
        "--disaggregation-mode (prefill and answer are in two servers)": (
            args.disaggregation_mode != "null"
        ),
        "--enable-pdmux (prefill is split by layers)": args.enable_pdmux,
        "data parallel over several nodes (dumps would lie on hosts that no worker sees)": (
            args.dp_size > 1 and args.nnodes > 1
        ),
        # A batch is not one forward pass over the rows that it lists.
        "--enable-two-batch-overlap (a batch is computed in two halves)": (
            args.enable_two_batch_overlap
        ),
        "--dllm-algorithm (a diffusion model computes a row several times)": (
            args.dllm_algorithm is not None
        ),
        "speculative decoding (batches carry rows of drafts)": (
            not scheduler.spec_algorithm.is_none()
        ),
        "a model that does not generate (it has no last hidden state)": not scheduler.is_generation,
        "--enable-encoder-swa-bounded-replay (a batch is computed in another form)": (
            args.enable_encoder_swa_bounded_replay
        ),
        # The weights, or the numbers that they are computed in, are not those of the spec.
        "--enable-memory-saver (weights can be released)": args.enable_memory_saver,
        f"--device {args.device} (rows are copied from CUDA devices and from CPUs)": (
            args.device not in ("cuda", "cpu")
        ),
        # The prompt is not what the client sent.
        "--allow-auto-truncate (prompts are cut in silence)": args.allow_auto_truncate,
        # Hooks are not where requests are.
        "--tokenizer-worker-num above 1 (admission is in one process)": (
            args.tokenizer_worker_num > 1
        ),
        "--use-ray (plugins are not loaded in its actors)": args.use_ray,
        "the Rust frontend (it passes admission by)": scheduler.rust_server is not None,
    }
    if reasons := [reason for reason, is_so in is_set.items() if is_so]:
        raise SystemExit(f"statetap: cannot capture with {'; '.join(reasons)}. Start without.")
