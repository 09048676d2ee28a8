"""Settings that a capturing server must not have."""

from types import SimpleNamespace
from typing import Any

import pytest
from statetap_patch.refusals import refuse_unsupported

GOOD: dict[str, Any] = {
    "pp_size": 1,
    "attn_cp_size": 1,
    "dcp_size": 1,
    "enable_prefill_cp": False,
    "enable_layernorm_sp": False,
    "disaggregation_mode": "null",
    "enable_pdmux": False,
    "dp_size": 1,
    "nnodes": 1,
    "enable_two_batch_overlap": False,
    "dllm_algorithm": None,
    "allow_auto_truncate": False,
    "tokenizer_worker_num": 1,
    "use_ray": False,
    "enable_encoder_swa_bounded_replay": False,
    "enable_memory_saver": False,
    "device": "cuda",
    "enable_return_aux_hidden_states": True,
}


def scheduler(*, is_speculative: bool = False, rust: object = None, **changes: Any) -> Any:
    return SimpleNamespace(
        server_args=SimpleNamespace(**(GOOD | changes)),
        spec_algorithm=SimpleNamespace(is_none=lambda: not is_speculative),
        is_generation=changes.get("is_generation", True),
        rust_server=rust,
    )


@pytest.mark.parametrize(
    "changes", [{}, {"dp_size": 8}, {"nnodes": 2}], ids=["default", "dp", "nodes"]
)
def test_a_server_that_can_capture_is_let_through(changes: dict[str, Any]) -> None:
    """Data parallel on one node and tensor parallel over several are fine."""
    refuse_unsupported(scheduler(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pp_size": 2}, "--pp-size"),
        ({"attn_cp_size": 2}, "--attn-cp-size"),
        ({"dcp_size": 2}, "--dcp-size"),
        ({"enable_prefill_cp": True}, "--enable-prefill-cp"),
        ({"enable_layernorm_sp": True}, "--enable-layernorm-sp"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode"),
        ({"enable_pdmux": True}, "--enable-pdmux"),
        ({"dp_size": 2, "nnodes": 2}, "data parallel over several nodes"),
        ({"enable_two_batch_overlap": True}, "--enable-two-batch-overlap"),
        ({"dllm_algorithm": "LowConfidence"}, "--dllm-algorithm"),
        ({"is_speculative": True}, "speculative decoding"),
        ({"is_generation": False}, "does not generate"),
        ({"allow_auto_truncate": True}, "--allow-auto-truncate"),
        ({"tokenizer_worker_num": 2}, "--tokenizer-worker-num"),
        ({"use_ray": True}, "--use-ray"),
        ({"enable_encoder_swa_bounded_replay": True}, "--enable-encoder-swa-bounded-replay"),
        ({"enable_memory_saver": True}, "--enable-memory-saver"),
        ({"device": "xpu"}, "--device xpu"),
        ({"rust": object()}, "the Rust frontend"),
    ],
)
def test_each_setting_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    """One sentence that says which, why, and what to do."""
    with pytest.raises(SystemExit, match=named) as caught:
        refuse_unsupported(scheduler(**changes))
    assert "Start without" in str(caught.value)


def test_all_are_named_at_once() -> None:
    """Nobody starts a large model three times to learn of three settings."""
    with pytest.raises(SystemExit, match=r"--pp-size.*--allow-auto-truncate"):
        refuse_unsupported(scheduler(pp_size=2, allow_auto_truncate=True))


def test_a_server_without_aux_states_is_refused() -> None:
    """Whoever takes the launcher's own flags away is told to use the launcher."""
    with pytest.raises(SystemExit, match="computes no aux states; use statetap-sglang"):
        refuse_unsupported(scheduler(enable_return_aux_hidden_states=False))
