"""The table of layer-id conventions, against every model class of the installed SGLang."""

import json
import subprocess
from pathlib import Path

import pytest
from statetap_local.services import SERVER_ENVIRONMENT

#: Written down by hand, so that a report that overlooks them cannot pass.
KNOWN = {
    "DeepseekV3ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "GptOssForCausalLM",
    "KimiK25ForConditionalGeneration",
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3VLMoeForConditionalGeneration",
}


def test_every_architecture_captures_what_was_asked_for() -> None:
    """The model's own hook, given our ids, records our boundaries; what we refuse cannot be had."""
    ended = subprocess.run(
        [
            str(SERVER_ENVIRONMENT / "bin" / "python"),
            str(Path(__file__).with_name("layer_ids_in_the_wheel.py")),
        ],
        env={"PATH": "/usr/bin:/bin", "SGLANG_PLATFORM": "statetap_cpu", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    report = json.loads(ended.stdout.splitlines()[-1])
    assert set(report) >= KNOWN
    wrong = {name: entry["wrong"] for name, entry in report.items() if entry["wrong"]}
    if wrong:
        pytest.fail("\n".join(f"{name}: {faults}" for name, faults in wrong.items()))
    # Layer 1 alone, of the models that take a first id of 1 for Llama's.
    assert all(entry["refused"] in ([], [[1]]) for entry in report.values())
    assert report["LlamaForCausalLM"]["refused"] == []
    assert report["DeepseekV3ForCausalLM"]["refused"] == [[1]]
