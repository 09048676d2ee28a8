"""A server that could not capture rightly does not start, and says why.

A second plugin stands for whatever else may be installed beside the patch, or for an SGLang in
which something has moved.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from statetap_local.service import free_port
from statetap_local.services import SERVER_ENVIRONMENT

from .capturing import write_plugin

MISSING = """
def register():
    from sglang.srt.managers.scheduler import Scheduler
    del Scheduler.maybe_sleep_on_idle
"""

EARLY = """
def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    target = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
    HookRegistry.register(target, lambda result, *args, **kwargs: None, HookType.AFTER)
    HookRegistry.apply_hooks()
"""

OTHER_LAYERS = """
def register():
    from sglang.srt.models.llama import LlamaForCausalLM
    original = LlamaForCausalLM.set_eagle3_layers_to_capture
    LlamaForCausalLM.set_eagle3_layers_to_capture = (
        lambda self, layers=None: original(self, [layer + 1 for layer in layers])
    )
"""

Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path) -> Start:
    """Starts a server beside a plugin with the given source; returns once it has ended."""

    def start_beside(plugin: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = write_plugin(tmp_path, plugin)
        dumps = tmp_path / "dumps"
        dumps.mkdir(mode=0o700)
        command = [
            str(SERVER_ENVIRONMENT / "bin" / "statetap-sglang"),
            "--cpu",
            f"--model={tiny_model}",
            f"--dumps={dumps}",
            f"--port={free_port()}",
            "--max-total-tokens=4096",
            *arguments,
        ]
        return subprocess.run(
            command,
            env=environment | {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return start_beside


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        pytest.param(MISSING, "this SGLang has no sglang.srt.managers.scheduler", id="missing"),
        pytest.param(EARLY, "forward_batch_generation was not applied", id="early"),
        pytest.param(
            OTHER_LAYERS, "captures layers [3, 5, 6] where [2, 4, 5] were asked for", id="layers"
        ),
    ],
)
def test_a_server_that_cannot_capture_does_not_start(
    start: Start, plugin: str, sentence: str
) -> None:
    """It ends by itself, with a code and a sentence."""
    ended = start(plugin)
    assert ended.returncode != 0
    assert sentence in ended.stdout + ended.stderr


def test_unsupported_settings_are_refused(start: Start) -> None:
    """Settings that would lose rows are named."""
    ended = start("def register(): pass", "--allow-auto-truncate")
    assert ended.returncode != 0
    assert "cannot capture with --allow-auto-truncate" in ended.stdout + ended.stderr
